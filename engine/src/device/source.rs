//! Source text of the kernels, and what they take.
//!
//! Kernels consist of phases, so that the CPU can run them ([decision 89](../../../docs/decisions/0089-kernels-in-phases.md)).

use std::collections::BTreeMap;

use registry::dtype::Dtype;

/// Threads of every block.
pub const THREADS: usize = constant(FILES[0], "THREADS") as usize;

/// Files of kernels, in an order in which each finds what it uses.
const FILES: &[&str] = &[
    include_str!("kernels/device.h"),
    include_str!("kernels/copy.cu"),
    include_str!("kernels/shape.cu"),
    include_str!("kernels/cache.cu"),
    include_str!("kernels/block.cu"),
    include_str!("kernels/round_inputs.cu"),
    include_str!("kernels/embed.cu"),
    include_str!("kernels/norm.cu"),
    include_str!("kernels/linear.cu"),
    include_str!("kernels/library.cu"),
    include_str!("kernels/codes.cu"),
    include_str!("kernels/rope.cu"),
    include_str!("kernels/elementwise.cu"),
    include_str!("kernels/activation.cu"),
    include_str!("kernels/select.cu"),
    include_str!("kernels/attend.cu"),
    include_str!("kernels/attend_selected.cu"),
    include_str!("kernels/pooled.cu"),
    include_str!("kernels/causal_conv.cu"),
    include_str!("kernels/route.cu"),
    include_str!("kernels/experts.cu"),
    include_str!("kernels/scan.cu"),
    include_str!("kernels/index_topk.cu"),
    include_str!("kernels/latent_attend.cu"),
    include_str!("kernels/ssd_scan.cu"),
    include_str!("kernels/ssm1_scan.cu"),
    include_str!("kernels/delta_rule.cu"),
    include_str!("kernels/rg_lru.cu"),
    include_str!("kernels/wkv.cu"),
    include_str!("kernels/mlstm.cu"),
    include_str!("kernels/grouped_conv.cu"),
    include_str!("kernels/lightning.cu"),
    include_str!("kernels/gated_norm.cu"),
    include_str!("kernels/rows.cu"),
];

/// Options of NVRTC, besides the architecture. Without contraction, sums have the bits of the CPU.
pub const OPTIONS: [&str; 2] = ["--fmad=false", "--std=c++17"];

/// Prefix of the names of kernels in the compiled code.
pub const PREFIX: &str = "op_";

/// Number of the encoding in 8 bits with a scale for each group, in kernels.
pub const FP8_GROUPS: u32 = constant(FILES[0], "FP8_GROUPS");

/// Number of the encoding in 8 bits with one scale, in kernels.
pub const FP8_FIXED: u32 = constant(FILES[0], "FP8_FIXED");

/// Returns the whole source text.
pub fn text() -> String {
    FILES.concat()
}

/// Returns the number that a file of kernels gives a name: `#define NAME 4u`.
///
/// # Panics
/// If the file does not define it, which is found when the program is compiled.
pub const fn constant(file: &str, name: &str) -> u32 {
    const DEFINE: &[u8] = b"#define ";
    let file = file.as_bytes();
    let name = name.as_bytes();
    let mut at = 0;
    while at + DEFINE.len() + name.len() + 1 < file.len() {
        let first = at + DEFINE.len();
        let end = first + name.len();
        if stands_at(file, at, DEFINE) && stands_at(file, first, name) && file[end] == b' ' {
            return number_at(file, end + 1);
        }
        at += 1;
    }
    panic!("the file defines no such number")
}

/// True if a text has these bytes at a place.
const fn stands_at(text: &[u8], at: usize, bytes: &[u8]) -> bool {
    let mut n = 0;
    while n < bytes.len() {
        if text[at + n] != bytes[n] {
            return false;
        }
        n += 1;
    }
    true
}

/// Returns the number whose digits begin at a place.
const fn number_at(text: &[u8], mut at: usize) -> u32 {
    let mut number = 0;
    while at < text.len() && text[at].is_ascii_digit() {
        number = number * 10 + (text[at] - b'0') as u32;
        at += 1;
    }
    number
}

/// Returns the number of a dtype in kernels.
pub fn dtype(dtype: Dtype) -> u32 {
    const F32: u32 = constant(FILES[0], "F32");
    const BF16: u32 = constant(FILES[0], "BF16");
    const F16: u32 = constant(FILES[0], "F16");
    match dtype {
        Dtype::F32 => F32,
        Dtype::Bf16 => BF16,
        Dtype::F16 => F16,
    }
}

/// The kind of a parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// A pointer.
    Address,
    /// `u64`.
    Count,
    /// `u32`.
    Index,
    /// `float`.
    Number,
}

/// Kernels of one form with their parameters.
type KernelDeclarations = BTreeMap<String, Vec<ParameterKind>>;

/// The kernels of the source text with their parameters.
#[derive(Debug, Clone)]
pub struct KernelSources {
    plain: KernelDeclarations,
    parts: KernelDeclarations,
}

impl KernelSources {
    /// Reads the declarations of the kernels of this program.
    ///
    /// # Panics
    /// If a declaration has a parameter of another type; the text is part of the program, and a test reads it.
    pub fn builtin() -> Self {
        let text = FILES[1..].concat();
        let plain = declarations(&text, "\nKERNEL(");
        let parts = declarations(&text, "\nPARTS_KERNEL(");
        Self { plain, parts }
    }

    /// Returns the parameters of a kernel; none if there is no such kernel.
    pub fn parameters(&self, kernel: &str) -> Option<&[ParameterKind]> {
        self.plain.get(kernel).map(Vec::as_slice)
    }

    /// Returns the parameters of each part of a kernel of parts; none if there is no such kernel.
    pub fn part_parameters(&self, kernel: &str) -> Option<&[ParameterKind]> {
        self.parts.get(kernel).map(Vec::as_slice)
    }

    /// Returns the names of all kernels.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.plain.keys().chain(self.parts.keys()).map(String::as_str)
    }
}

/// Reads the declarations of all kernels that begin with `form`.
fn declarations(text: &str, form: &str) -> KernelDeclarations {
    text.split(form).skip(1).map(declaration).collect()
}

/// Reads the name and the parameters of a kernel.
fn declaration(text: &str) -> (String, Vec<ParameterKind>) {
    let end = text.find(") {").expect("a declaration has a body");
    let mut words = text[..end].split(',').map(str::trim);
    let name = words.next().unwrap_or_default().to_owned();
    (name, words.map(kind).collect())
}

fn kind(parameter: &str) -> ParameterKind {
    if parameter.contains('*') {
        return ParameterKind::Address;
    }
    match parameter.split_whitespace().next() {
        Some("u64") => ParameterKind::Count,
        Some("u32") => ParameterKind::Index,
        Some("float") => ParameterKind::Number,
        _ => unreachable!("a kernel takes pointers, u64, u32 and float, not `{parameter}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_read() {
        use ParameterKind::{Address, Count, Index, Number};

        let sources = KernelSources::builtin();
        assert_eq!(
            sources.parameters("softcap"),
            Some(&[Address, Index, Number, Address, Index, Count][..])
        );
        let text = text();
        let declarations = text
            .lines()
            .filter(|line| line.starts_with("KERNEL(") || line.starts_with("PARTS_KERNEL("));
        assert_eq!(sources.names().count(), declarations.count());
        let rounding = sources.part_parameters("round_numbers");
        assert_eq!(rounding, Some(&[Address, Index, Count][..]));
        assert_eq!(sources.parameters("round_numbers"), None, "it takes a table");
        assert_eq!(sources.parameters("norm").map(<[_]>::len), Some(14));
    }

    #[test]
    fn constants_are_those_of_the_files() {
        const FILE: &str = "#define ONES 11u\n#define ONE 1u\n";
        assert_eq!([constant(FILE, "ONE"), constant(FILE, "ONES")], [1, 11]);
        assert!(text().contains(&format!("#define THREADS {THREADS}u\n")));
    }
}
