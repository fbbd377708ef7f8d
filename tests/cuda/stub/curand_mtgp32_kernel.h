// Included by CUB for a random number generator that nothing here uses; it comes with cuRAND, which is not needed.
