"""Write the C source of the extension module `pyggml._native._ffi`.

    build_cffi.py OUTPUT COMPILER [COMPILER OPTIONS...]

The declarations come from the headers themselves: api.h goes through the C preprocessor, what belongs to the system's headers is
dropped, and cffi gets the rest. So no list of functions or fields is kept by hand, and a new upstream needs none.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cffi
from pycparser import CParser, c_ast, c_generator

API = Path(__file__).with_name("api.h")

# What Python gives to C. cffi makes a C function of each, and pyggml/_native/__init__.py the Python side.
CALLBACKS = """
extern "Python" void pyggml_py_log(int level, char *text);
extern "Python" bool pyggml_py_progress(float progress, void *user_data);
extern "Python" bool pyggml_py_interrupt(void *user_data);
extern "Python" int pyggml_py_engine(void *data, int moment, int mode);
"""

# Functions of ggml-cpu.h are in a backend that is loaded at run time; they are reached through ggml_backend_reg_get_proc_address().
NOT_LINKED = {"ggml-cpu.h"}

# A number, or the name of another one: what cffi can take as a constant.
CONSTANT = re.compile(
    r"^#\s*define\s+((?:GGML|GGUF|LLAMA|MTMD|PYGGML)_[A-Z0-9_]+)\s+\(?(-?(?:0x[0-9a-fA-F]+|\d+)[uUlL]*|[A-Z][A-Z0-9_]+)\)?\s*(?://.*)?$"
)

# For pycparser, which sees none of the system's headers.
NAMES = ["FILE", "intptr_t", "ptrdiff_t", "size_t", "uintptr_t"] + [
    f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)
]
TYPES = "".join(f"typedef int {name};\n" for name in NAMES)


def preprocessed(command: list[str]) -> str:
    hide = ["-D__attribute__(x)=", "-D_Noreturn=", "-D__extension__="]
    # a macro of a system header would be taken for a part of that header
    hide += ["-D_STDBOOL_H", "-D__STDBOOL_H", "-Dbool=_Bool"]
    done = subprocess.run([*command, *hide, "-E", "-dD", "-x", "c", str(API)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"build_cffi.py: the headers could not be read\n{done.stderr}")
    return done.stdout


def lines_of_headers(text: str) -> Iterator[tuple[str, str]]:
    """(header name, line) for every line that is not from a system header."""
    name, system = "", True
    for line in text.splitlines():
        marker = re.match(r'^# \d+ "([^"]*)"([ \d]*)$', line)
        if marker:
            name = Path(marker[1]).name
            system = "3" in marker[2].split() or marker[1].startswith("<") or marker[1].startswith("/usr/")
        elif not system:
            yield name, line


class _OpenArrays(c_ast.NodeVisitor):
    """Leaves lengths that are computed to the C compiler."""

    def visit_ArrayDecl(self, node: c_ast.ArrayDecl) -> None:
        if node.dim is not None and not isinstance(node.dim, c_ast.Constant):
            node.dim = c_ast.ID("...")
        self.generic_visit(node)


def declarations(text: str) -> str:
    """cffi's input: types, functions and integer constants."""
    code, constants, skipped = [], [], set()
    for header, line in lines_of_headers(text):
        if line.lstrip().startswith("#"):
            found = CONSTANT.match(line)
            if found and (not found[2][0].isalpha() or found[2] in constants):
                constants.append(found[1])
            continue
        code.append(line)
        if header in NOT_LINKED:
            skipped.update(re.findall(r"\b(ggml_\w+)\s*\(", line))
    tree = CParser().parse(TYPES + "\n".join(code), filename="api.h")
    _OpenArrays().visit(tree)
    generator = c_generator.CGenerator()
    result = []
    for node in tree.ext[len(NAMES) :]:
        if isinstance(node, c_ast.FuncDef):
            continue  # inline in the header: nothing to link to
        if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            node.storage, node.funcspec = [], []
            if node.name in skipped:
                continue
        result.append(generator.visit(node) + ";")
    result = list(dict.fromkeys(result))  # C allows to say a thing twice
    return "\n".join(result + [f"#define {name} ..." for name in dict.fromkeys(constants)])


def main() -> None:
    output, *command = sys.argv[1:]
    ffi = cffi.FFI()
    ffi.cdef(declarations(preprocessed(command)))
    ffi.cdef(CALLBACKS)
    ffi.set_source("pyggml._native._ffi", '#include "api.h"', py_limited_api=True)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main()
