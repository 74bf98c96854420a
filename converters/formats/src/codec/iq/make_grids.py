#!/usr/bin/env python3
"""Writes `grids.rs` from ggml's tables: `make_grids.py path/to/ggml-common.h > grids.rs`.

ggml spells a point out as 8 or 4 bytes of values. Values of one table are few (3 or 8), so a point
is kept as their places in ascending order, 2 bits (8 numbers) or 3 bits (4 numbers) each. That is
also the form in which the quantizer of ggml-quants.c keeps the same points (`kgrid_*`).
"""

import re
import sys

TABLES = [
    ("iq2xxs_grid", "IQ2_XXS", 8, [0x08, 0x19, 0x2B]),
    ("iq2xs_grid", "IQ2_XS", 8, [0x08, 0x19, 0x2B]),
    ("iq2s_grid", "IQ2_S", 8, [0x08, 0x19, 0x2B]),
    ("iq3xxs_grid", "IQ3_XXS", 4, [0x04, 0x0C, 0x14, 0x1C, 0x24, 0x2C, 0x34, 0x3E]),
    ("iq3s_grid", "IQ3_S", 4, [1, 3, 5, 7, 9, 11, 13, 15]),
    ("iq1s_grid", "IQ1", 8, [0xFF, 0x00, 0x01]),
]

HEAD = """\
//! The points of the codebook formats, as packed places: 8 of 2 bits or 4 of 3 bits.
//!
//! Made by `make_grids.py` from `ggml-common.h` of ggml, whose data this is:
//!
//! MIT License
//!
//! Copyright (c) 2023-2026 The ggml authors
//!
//! Permission is hereby granted, free of charge, to any person obtaining a copy
//! of this software and associated documentation files (the "Software"), to deal
//! in the Software without restriction, including without limitation the rights
//! to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
//! copies of the Software, and to permit persons to whom the Software is
//! furnished to do so, subject to the following conditions:
//!
//! The above copyright notice and this permission notice shall be included in all
//! copies or substantial portions of the Software.
//!
//! THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
//! IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
//! FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
//! AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
//! LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
//! OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
//! SOFTWARE.
"""


def points(source: str, name: str, numbers: int, values: list[int]) -> list[int]:
    body = re.search(rf"GGML_TABLE_BEGIN\(\w+, {name}, \w+\)(.*?)GGML_TABLE_END", source, re.S)
    bits = {8: 2, 4: 3}[numbers]
    packed = []
    for point in re.findall(r"0x[0-9a-f]+", body.group(1)):
        point = int(point, 16).to_bytes(numbers, "little")
        packed.append(sum(values.index(value) << bits * i for i, value in enumerate(point)))
    return packed


def main() -> None:
    source = open(sys.argv[1], encoding="utf-8").read()
    print(HEAD, end="")
    for name, ours, numbers, values in TABLES:
        packed = points(source, name, numbers, values)
        print(f"\n/// `{name}`.\n#[rustfmt::skip]\npub(super) const {ours}: &[u16; {len(packed)}] = &[")
        for at in range(0, len(packed), 16):
            print("    " + " ".join(f"{point}," for point in packed[at : at + 16]))
        print("];")


main()
