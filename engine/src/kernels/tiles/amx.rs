//! Tiles in the matrix unit of x86-64 (AMX).
//!
//! The instructions are written out, because the compiler has no stable functions for them.
#![expect(unsafe_code, reason = "instructions of the matrix unit")]

use std::arch::asm;
use std::sync::OnceLock;

use registry::file;

use super::{InputTile, TileSums, WeightTiles, portable};

/// Number by which a process asks for a feature of the CPU, and that of tiles.
const ASK_FOR_FEATURE: libc::c_long = 0x1023;
const TILE_DATA: libc::c_long = 18;

/// Eight tiles of sixteen rows of 64 bytes.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// True if the CPU has the unit, the system permits its use, and its products have the bits of the portable form.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| listed() && permitted() && agrees())
}

/// True if the system lists the unit among the features of the CPU.
fn listed() -> bool {
    let Ok(text) = file::read_text("/proc/cpuinfo".as_ref(), file::CONFIG) else { return false };
    let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    ["amx_tile", "amx_bf16"]
        .iter()
        .all(|feature| flags.split_whitespace().any(|flag| flag == *feature))
}

/// Asks the system for the registers of the unit, for all threads of the process.
fn permitted() -> bool {
    // SAFETY: asks for a feature by its number; an unknown one is refused.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ASK_FOR_FEATURE, TILE_DATA) == 0 }
}

/// True if a product has the bits of the portable form.
fn agrees() -> bool {
    const STEPS: usize = 3;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let weight: Vec<u8> =
        (0..32 * STEPS * 32).flat_map(|_| (next_bits(&mut state) as u16).to_le_bytes()).collect();
    let x: [Vec<InputTile>; 2] =
        std::array::from_fn(|_| (0..STEPS).map(|_| next_tile(&mut state)).collect());
    let (low, high) = weight.split_at(weight.len() / 2);
    let weight = WeightTiles { tiles: [low, high], stride: STEPS * 64, steps: STEPS };
    let mut ours = TileSums::default();
    let mut theirs = TileSums::default();
    square(weight, [&x[0], &x[1]], &mut ours);
    portable::square(weight, [&x[0], &x[1]], &mut theirs);
    sum_bits(&ours) == sum_bits(&theirs)
}

/// Returns a tile of pseudo-random pairs of bf16.
fn next_tile(state: &mut u64) -> InputTile {
    std::array::from_fn(|_| std::array::from_fn(|_| next_bits(state) | next_bits(state) << 16))
}

/// Returns the bits of a pseudo-random number in bf16: numbers are of many magnitudes, and some are subnormal.
fn next_bits(state: &mut u64) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let exponent = [0, 60, 110, 126, 127, 128][(*state >> 40) as usize % 6];
    (*state >> 20) as u32 & 0x807f | exponent << 7
}

/// Returns the bits of all sums.
fn sum_bits(sums: &TileSums) -> Vec<u32> {
    sums.as_flattened().as_flattened().as_flattened().iter().map(|x| x.to_bits()).collect()
}

/// Computes the sums of a square.
///
/// # Panics
/// If a slice is shorter than its tiles.
pub(super) fn square(weight: WeightTiles<'_>, x: [&[InputTile]; 2], sums: &mut TileSums) {
    let WeightTiles { tiles, stride, steps } = weight;
    if steps == 0 {
        *sums = TileSums::default();
        return;
    }
    let last = 15 * stride + steps * 64;
    assert!(tiles.iter().all(|tile| tile.len() >= last) && x.iter().all(|x| x.len() == steps));
    // SAFETY: `available` was true or checks now that this CPU and system have the unit. The loads read 16 rows of
    // 64 bytes, `stride` apart, of `steps` steps, which was checked above, and 1024 bytes of each step of `x`. The
    // stores write the four tiles of `sums`. The compiler keeps nothing in tiles, and the unit is given back.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{w0} + {stride}*1]",
            "tileloadd tmm6, [{x0} + {row}*1]",
            "tileloadd tmm7, [{x1} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{w1} + {stride}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {w0}, 64",
            "add {w1}, 64",
            "add {x0}, 1024",
            "add {x1}, 1024",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {row}*1], tmm0",
            "tilestored [{sums} + {row}*1 + 1024], tmm1",
            "tilestored [{sums} + {row}*1 + 2048], tmm2",
            "tilestored [{sums} + {row}*1 + 3072], tmm3",
            "tilerelease",
            config = in(reg) &raw const CONFIG,
            w0 = inout(reg) tiles[0].as_ptr() => _,
            w1 = inout(reg) tiles[1].as_ptr() => _,
            x0 = inout(reg) x[0].as_ptr() => _,
            x1 = inout(reg) x[1].as_ptr() => _,
            steps = inout(reg) steps => _,
            stride = in(reg) stride,
            row = in(reg) 64_usize,
            sums = in(reg) sums.as_mut_ptr(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
