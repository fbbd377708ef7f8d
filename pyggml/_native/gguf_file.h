// A bounds-checked reader of GGUF headers: everything is compared with the size of the file before memory is spent on
// it.
#pragma once

#include "gguf_check.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>
#include <unordered_map>
#include <vector>

namespace pyggml {

struct gguf_error : std::runtime_error {
    int reason;
    gguf_error(int why, const std::string &message) : std::runtime_error(message), reason(why) {}
};

enum class gguf_type : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

// Bytes of one value; 0 for strings and arrays, whose size is in the file, and for what is no type at all.
inline uint64_t type_size(gguf_type type) {
    static constexpr uint64_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    const auto index = static_cast<uint32_t>(type);
    return index < sizeof(sizes) / sizeof(sizes[0]) ? sizes[index] : 0;
}

struct gguf_value {
    gguf_type type;
    gguf_type element; // of an array
    uint64_t bits;     // a number as it lies in the file, zero-extended
    uint64_t count;    // elements of an array, bytes of a string
    uint64_t offset;   // where the elements or bytes begin
    std::string text;  // of a string: its beginning
};

struct gguf_tensor {
    uint32_t type;
    int64_t ne[4];
    uint64_t offset; // from the beginning of the data section
};

// The loader looks keys and tensors up by walking a list, so their number costs quadratic time. Real files have a few
// hundred keys and at most 512 layers of some dozens of tensors.
inline constexpr uint64_t max_keys = 1 << 16;
inline constexpr uint64_t max_tensors = 1 << 15;
inline constexpr uint64_t max_name = 63;
inline constexpr uint64_t max_key = 65535;
inline constexpr uint64_t kept_text = 256;
inline constexpr size_t window_size = 1 << 18;

struct tensor_type {
    uint32_t elements; // of a block; 0: a type that was removed
    uint32_t bytes;    // of a block
};

// Indexed by ggml_type. A type past the end is left to the loader, which may be newer than this table.
inline constexpr tensor_type tensor_types[] = {
    {1, 4},    {1, 2},    {32, 18},   {32, 20},   {0, 0},     {0, 0},     {32, 22},   {32, 24},  {32, 34},
    {32, 36},  {256, 84}, {256, 110}, {256, 144}, {256, 176}, {256, 210}, {256, 292}, {256, 66}, {256, 74},
    {256, 98}, {256, 50}, {32, 18},   {256, 110}, {256, 82},  {256, 136}, {1, 1},     {1, 2},    {1, 4},
    {1, 8},    {1, 8},    {256, 56},  {1, 2},     {0, 0},     {0, 0},     {0, 0},     {256, 54}, {256, 66},
    {0, 0},    {0, 0},    {0, 0},     {32, 17},   {64, 36},   {128, 18},  {64, 18},
};
inline constexpr size_t n_tensor_types = sizeof(tensor_types) / sizeof(tensor_types[0]);

[[noreturn]] inline void refuse(int reason, const std::string &message) {
    throw gguf_error(reason, message);
}

inline std::string number(uint64_t value) {
    return std::to_string(value);
}

// A name from the file for a message: short, and without bytes that would garble a terminal.
inline std::string quoted(const std::string &name) {
    std::string result = "'";
    for (const unsigned char c : name.substr(0, 80)) {
        result += c < 0x20 || c == 0x7f ? '?' : static_cast<char>(c);
    }
    return result + (name.size() > 80 ? "...'" : "'");
}

inline std::string shape(const gguf_tensor &tensor) {
    std::string result = "[";
    for (int i = 0; i < 4; i++) {
        result += (i ? ", " : "") + std::to_string(tensor.ne[i]);
    }
    return result + "]";
}

// Bytes of the tensor's data; 0 where the type is newer than our table.
inline uint64_t tensor_bytes(const std::string &name, const gguf_tensor &tensor) {
    uint64_t elements = 1;
    for (const int64_t n : tensor.ne) {
        if (n <= 0) {
            refuse(PYGGML_GGUF_INVALID, "tensor " + quoted(name) + " has a dimension below 1: " + shape(tensor));
        }
        if (elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / static_cast<uint64_t>(n)) {
            refuse(PYGGML_GGUF_INVALID, "tensor " + quoted(name) + " has too many elements: " + shape(tensor));
        }
        elements *= static_cast<uint64_t>(n);
    }
    if (tensor.type >= n_tensor_types) {
        return 0;
    }
    const tensor_type type = tensor_types[tensor.type];
    if (type.elements == 0) {
        refuse(PYGGML_GGUF_UNSUPPORTED,
               "tensor " + quoted(name) + " has type " + number(tensor.type) + ", which is no longer supported");
    }
    if (static_cast<uint64_t>(tensor.ne[0]) % type.elements != 0) {
        refuse(PYGGML_GGUF_MALFORMED, "rows of tensor " + quoted(name) + " are no whole number of blocks of " +
                                          number(type.elements) + " elements: " + shape(tensor));
    }
    const uint64_t blocks = elements / type.elements;
    return blocks > std::numeric_limits<uint64_t>::max() / 2 / type.bytes ? std::numeric_limits<uint64_t>::max()
                                                                          : blocks * type.bytes;
}

class gguf_file {
  public:
    // Reads header, metadata and tensor infos; throws gguf_error.
    explicit gguf_file(const std::filesystem::path &path);

    const gguf_value *find(const std::string &key) const {
        const auto it = metadata_.find(key);
        return it == metadata_.end() ? nullptr : &it->second;
    }
    const std::unordered_map<std::string, gguf_value> &metadata() const { return metadata_; }
    const std::unordered_map<std::string, gguf_tensor> &tensors() const { return tensors_; }

    // For a second look at the elements of an array.
    void seek(uint64_t offset);
    template <typename T> T read(const char *what) {
        T value;
        std::memcpy(&value, view(sizeof(value), what), sizeof(value));
        return value;
    }
    // The string at the current position, at most `keep` bytes of it.
    std::string read_string(uint64_t keep, const std::string &what, uint64_t *length);
    // A hash of the string at the current position, 0 if it is empty; equal strings have equal hashes.
    uint64_t hash_string();

  private:
    // The next `size` bytes, at most window_size; valid until the next call.
    const char *view(size_t size, const char *what);
    void skip(uint64_t size, const std::string &what);
    uint64_t left() const { return size_ - position_; }
    void read_value(const std::string &key);
    void read_tensor(uint64_t number);
    void check_layout() const;

    std::ifstream stream_;
    uint64_t size_ = 0;
    uint64_t position_ = 0;    // of the next byte to hand out
    std::vector<char> buffer_; // a window of the file
    uint64_t window_ = 0;      // where that window begins
    uint64_t data_ = 0;        // where the data section begins
    std::vector<std::string> order_;
    std::unordered_map<std::string, gguf_value> metadata_;
    std::unordered_map<std::string, gguf_tensor> tensors_;
};

inline gguf_file::gguf_file(const std::filesystem::path &path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (status.type() == std::filesystem::file_type::not_found) {
        refuse(PYGGML_GGUF_MISSING, "no such file");
    }
    if (std::filesystem::is_directory(status)) {
        refuse(PYGGML_GGUF_DIRECTORY, "is a directory");
    }
    if (error == std::errc::permission_denied) {
        refuse(PYGGML_GGUF_PERMISSION, "permission denied");
    }
    if (error) {
        refuse(PYGGML_GGUF_UNREADABLE, error.message());
    }
    if (!std::filesystem::is_regular_file(status)) { // opening a FIFO would wait for ever
        refuse(PYGGML_GGUF_UNREADABLE, "not a regular file");
    }
    errno = 0;
    stream_.open(path, std::ios::binary);
    if (!stream_ && (errno == EACCES || errno == EPERM)) {
        refuse(PYGGML_GGUF_PERMISSION, "permission denied");
    }
    if (!stream_) {
        refuse(PYGGML_GGUF_UNREADABLE, errno ? std::generic_category().message(errno) : "cannot be opened");
    }
    size_ = std::filesystem::file_size(path, error);
    if (error) {
        refuse(PYGGML_GGUF_UNREADABLE, error.message());
    }
    if (size_ == 0) {
        refuse(PYGGML_GGUF_NOT_GGUF, "the file is empty");
    }
    if (size_ < 4 || std::memcmp(view(4, "the magic"), "GGUF", 4) != 0) {
        refuse(PYGGML_GGUF_NOT_GGUF, "not a GGUF file: it does not begin with 'GGUF'");
    }
    const auto version = read<uint32_t>("the version");
    if (version != 0 && (version & 0xffff) == 0) {
        refuse(PYGGML_GGUF_UNSUPPORTED, "the file has the other byte order");
    }
    if (version != 2 && version != 3) {
        refuse(PYGGML_GGUF_UNSUPPORTED, "GGUF version " + number(version) + " is not supported");
    }
    const auto n_tensors = read<uint64_t>("the number of tensors");
    const auto n_keys = read<uint64_t>("the number of keys");
    if (n_tensors > max_tensors || n_tensors > left() / 24) { // the smallest tensor info has 24 bytes
        refuse(PYGGML_GGUF_MALFORMED, "absurd number of tensors: " + number(n_tensors));
    }
    if (n_keys > max_keys || n_keys > left() / 13) { // the smallest pair has 13 bytes
        refuse(PYGGML_GGUF_MALFORMED, "absurd number of metadata keys: " + number(n_keys));
    }
    for (uint64_t i = 0; i < n_keys; i++) {
        uint64_t length = 0;
        const std::string key = read_string(max_key, "metadata key " + number(i), &length);
        if (length == 0 || length > max_key) {
            refuse(PYGGML_GGUF_MALFORMED,
                   "metadata key " + number(i) + " has a length of " + number(length) + " bytes");
        }
        read_value(key);
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        read_tensor(i);
    }
    data_ = position_;
    check_layout();
}

inline void gguf_file::seek(uint64_t offset) {
    position_ = std::min(offset, size_);
}

inline const char *gguf_file::view(size_t size, const char *what) {
    if (size > left()) {
        refuse(PYGGML_GGUF_TRUNCATED, std::string("the file ends within ") + what + ", at byte " + number(size_));
    }
    if (position_ < window_ || position_ + size > window_ + buffer_.size()) {
        window_ = position_;
        buffer_.resize(static_cast<size_t>(std::min<uint64_t>(window_size, left())));
        stream_.seekg(static_cast<std::streamoff>(window_));
        stream_.read(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
        if (!stream_) {
            refuse(PYGGML_GGUF_UNREADABLE, "reading fails at byte " + number(window_));
        }
    }
    position_ += size;
    return buffer_.data() + (position_ - size - window_);
}

inline void gguf_file::skip(uint64_t size, const std::string &what) {
    if (size > left()) {
        refuse(PYGGML_GGUF_TRUNCATED,
               what + " reaches past the end of the file: " + number(size) + " bytes, " + number(left()) + " left");
    }
    position_ += size;
}

inline std::string gguf_file::read_string(uint64_t keep, const std::string &what, uint64_t *length) {
    *length = read<uint64_t>("the length of a string");
    const uint64_t begin = position_;
    skip(*length, what);
    const uint64_t end = position_;
    const auto kept = static_cast<size_t>(std::min(*length, keep));
    position_ = begin;
    const std::string text(view(kept, "a string"), kept);
    position_ = end;
    return text;
}

inline uint64_t gguf_file::hash_string() {
    uint64_t rest = read<uint64_t>("the length of a string");
    uint64_t hash = rest * 0xbf58476d1ce4e5b9u;
    while (rest > 0) {
        const auto step = static_cast<size_t>(std::min<uint64_t>(rest, sizeof(uint64_t)));
        uint64_t word = 0;
        std::memcpy(&word, view(step, "a string"), step);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
        rest -= step;
    }
    return hash;
}

inline void gguf_file::read_value(const std::string &key) {
    const std::string what = "the value of " + quoted(key);
    gguf_value value{};
    value.type = static_cast<gguf_type>(read<uint32_t>("the type of a value"));
    value.offset = position_;
    if (value.type == gguf_type::array) {
        value.element = static_cast<gguf_type>(read<uint32_t>("the type of an array"));
        value.count = read<uint64_t>("the length of an array");
        value.offset = position_;
        const uint64_t size = type_size(value.element);
        const bool strings = value.element == gguf_type::string;
        if (size == 0 && !strings) {
            refuse(PYGGML_GGUF_MALFORMED,
                   what + " is an array of type " + number(static_cast<uint32_t>(value.element)));
        }
        if (value.count > left() / (strings ? sizeof(uint64_t) : size)) {
            refuse(PYGGML_GGUF_TRUNCATED,
                   what + " reaches past the end of the file: an array of " + number(value.count) + " elements");
        }
        if (strings) {
            for (uint64_t i = 0; i < value.count; i++) {
                skip(read<uint64_t>("length of a string"), what);
            }
        } else {
            skip(value.count * size, what);
        }
    } else if (value.type == gguf_type::string) {
        value.text = read_string(kept_text, what, &value.count);
        value.offset = position_ - value.count;
    } else if (const uint64_t size = type_size(value.type)) {
        std::memcpy(&value.bits, view(static_cast<size_t>(size), "a metadata value"), static_cast<size_t>(size));
    } else {
        refuse(PYGGML_GGUF_MALFORMED, what + " has an unknown type: " + number(static_cast<uint32_t>(value.type)));
    }
    if (!metadata_.emplace(key, std::move(value)).second) {
        refuse(PYGGML_GGUF_MALFORMED, "metadata key " + quoted(key) + " occurs twice");
    }
}

inline void gguf_file::read_tensor(uint64_t index) {
    uint64_t length = 0;
    const std::string name = read_string(max_name, "the name of tensor " + number(index), &length);
    if (length > max_name) {
        refuse(PYGGML_GGUF_MALFORMED, "tensor " + number(index) + " has a name of " + number(length) + " bytes");
    }
    gguf_tensor tensor{0, {1, 1, 1, 1}, 0};
    const auto n_dims = read<uint32_t>("the tensor infos");
    if (n_dims > 4) {
        refuse(PYGGML_GGUF_MALFORMED, "tensor " + quoted(name) + " has " + number(n_dims) + " dimensions");
    }
    for (uint32_t i = 0; i < n_dims; i++) {
        tensor.ne[i] = read<int64_t>("the tensor infos");
    }
    tensor.type = read<uint32_t>("the tensor infos");
    tensor.offset = read<uint64_t>("the tensor infos");
    if (!tensors_.emplace(name, tensor).second) {
        refuse(PYGGML_GGUF_MALFORMED, "tensor " + quoted(name) + " occurs twice");
    }
    order_.push_back(name);
}

// Tensor data follow one another without gaps other than padding, and end within the file.
inline void gguf_file::check_layout() const {
    uint64_t alignment = 32;
    if (const gguf_value *value = find("general.alignment")) {
        alignment = value->bits;
        if (value->type != gguf_type::u32 || alignment == 0 || (alignment & (alignment - 1)) != 0) {
            refuse(PYGGML_GGUF_MALFORMED, "'general.alignment' is no power of two of type u32: " + number(alignment));
        }
    }
    const auto padded = [&](uint64_t size) { return (size + alignment - 1) / alignment * alignment; };
    const uint64_t begin = padded(data_);
    uint64_t expected = 0;
    for (const std::string &name : order_) {
        const gguf_tensor &tensor = tensors_.at(name);
        const uint64_t size = tensor_bytes(name, tensor);
        if (size == 0) {
            return;
        }
        if (tensor.offset != expected) {
            refuse(PYGGML_GGUF_MALFORMED, "tensor " + quoted(name) + " lies at offset " + number(tensor.offset) +
                                              ", not at " + number(expected) + " behind the one before");
        }
        if (begin > size_ || expected > size_ - begin || size > size_ - begin - expected) {
            refuse(PYGGML_GGUF_TRUNCATED,
                   "tensor " + quoted(name) + " reaches past the end of the file: " + shape(tensor) + ", " +
                       number(size) + " bytes at offset " + number(begin + expected) + " of " + number(size_));
        }
        expected += padded(size);
    }
}

} // namespace pyggml
