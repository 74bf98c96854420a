//! The kernel for any CPU: plain arrays.
#![expect(unsafe_code, reason = "reads through the pointers of the kernel")]

use super::form::PackedLayout;
use super::lanes::ByteLanes;
use super::panel::{RowPanel, panel};

#[derive(Clone, Copy)]
struct PortableBytes;

/// Returns `N` bytes per lane.
///
/// # Safety
/// `16 * N` bytes are readable.
unsafe fn each<const N: usize, T>(from: *const u8, one: impl Fn([u8; N]) -> T) -> [T; 16] {
    // SAFETY: the caller's promise.
    let bytes: [[u8; N]; 16] = unsafe { from.cast::<[[u8; N]; 16]>().read_unaligned() };
    bytes.map(one)
}

fn pairs(a: u32, shift: impl Fn(u16) -> u16) -> u32 {
    u32::from(shift(a as u16)) | u32::from(shift((a >> 16) as u16)) << 16
}

fn dot(sum: u32, levels: u32, x: [i8; 4], level: impl Fn(u8) -> i32) -> u32 {
    let products = levels.to_le_bytes().into_iter().zip(x);
    products.fold(sum, |sum, (l, x)| sum.wrapping_add_signed(level(l) * i32::from(x)))
}

impl ByteLanes for PortableBytes {
    const LANES: usize = 16;
    const SIGNED: i32 = 0;
    type Int = [u32; 16];
    type Float = [f32; 16];

    unsafe fn load(from: *const u8) -> [u32; 16] {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { each(from, u32::from_le_bytes) }
    }
    unsafe fn table(from: &[i8; 16]) -> [u32; 16] {
        std::array::from_fn(|lane| {
            let at = lane % 4 * 4;
            u32::from_le_bytes(std::array::from_fn(|n| from[at + n].cast_unsigned()))
        })
    }
    unsafe fn splat_byte(byte: u8) -> [u32; 16] {
        [u32::from_le_bytes([byte; 4]); 16]
    }
    unsafe fn and(a: [u32; 16], b: [u32; 16]) -> [u32; 16] {
        std::array::from_fn(|l| a[l] & b[l])
    }
    unsafe fn or(a: [u32; 16], b: [u32; 16]) -> [u32; 16] {
        std::array::from_fn(|l| a[l] | b[l])
    }
    unsafe fn right<const N: i32>(a: [u32; 16]) -> [u32; 16] {
        a.map(|a| pairs(a, |pair| pair >> N))
    }
    unsafe fn left<const N: i32>(a: [u32; 16]) -> [u32; 16] {
        a.map(|a| pairs(a, |pair| pair << N))
    }
    unsafe fn lookup(table: [u32; 16], index: [u32; 16]) -> [u32; 16] {
        index.map(|index| {
            u32::from_le_bytes(
                index
                    .to_le_bytes()
                    .map(|at: u8| table[at as usize / 4].to_le_bytes()[at as usize % 4]),
            )
        })
    }
    unsafe fn signed(a: [u32; 16]) -> [u32; 16] {
        a
    }
    unsafe fn splat_int(value: i32) -> [u32; 16] {
        [value.cast_unsigned(); 16]
    }
    unsafe fn dot(sum: [u32; 16], levels: [u32; 16], x: *const i8) -> [u32; 16] {
        // SAFETY: the caller lets four bytes be read.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() };
        std::array::from_fn(|l| dot(sum[l], levels[l], x, i32::from))
    }
    unsafe fn dot_signed(sum: [u32; 16], levels: [u32; 16], x: *const i8) -> [u32; 16] {
        // SAFETY: the caller lets four bytes be read.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() };
        std::array::from_fn(|l| dot(sum[l], levels[l], x, |level| i32::from(level.cast_signed())))
    }
    unsafe fn to_float(a: [u32; 16]) -> [f32; 16] {
        a.map(|a| a.cast_signed() as f32)
    }
    unsafe fn zero() -> [f32; 16] {
        [0.0; 16]
    }
    unsafe fn splat(value: f32) -> [f32; 16] {
        [value; 16]
    }
    unsafe fn load_f32(from: *const u8) -> [f32; 16] {
        // SAFETY: the caller lets 64 bytes be read.
        unsafe { each(from, f32::from_le_bytes) }
    }
    unsafe fn load_f16(from: *const u8) -> [f32; 16] {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe { each(from, |bits| half::f16::from_le_bytes(bits).to_f32()) }
    }
    unsafe fn load_bf16(from: *const u8) -> [f32; 16] {
        // SAFETY: the caller lets 32 bytes be read.
        unsafe { each(from, |bits| half::bf16::from_le_bytes(bits).to_f32()) }
    }
    unsafe fn load_i8(from: *const u8) -> [f32; 16] {
        // SAFETY: the caller lets 16 bytes be read.
        unsafe { each(from, |[byte]| f32::from(byte.cast_signed())) }
    }
    unsafe fn load_u8(from: *const u8) -> [f32; 16] {
        // SAFETY: the caller lets 16 bytes be read.
        unsafe { each(from, |[byte]| f32::from(byte)) }
    }
    unsafe fn mul(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|l| a[l] * b[l])
    }
    unsafe fn fma(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|l| a[l].mul_add(b[l], c[l]))
    }
    unsafe fn minus(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|l| (-a[l]).mul_add(b[l], c[l]))
    }
    unsafe fn store(a: [f32; 16], to: *mut f32) {
        // SAFETY: the caller lets 64 bytes be written.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(a) }
    }
}

/// Multiplies one panel.
///
/// # Safety
/// As [`panel`].
pub(super) unsafe fn run<F: PackedLayout>(of: &RowPanel<'_>) {
    // SAFETY: the caller's promise; no CPU feature is needed.
    unsafe {
        match of.rows {
            4 => panel::<PortableBytes, F, 4>(of),
            2 => panel::<PortableBytes, F, 2>(of),
            _ => panel::<PortableBytes, F, 1>(of),
        }
    }
}
