//! Constrained outputs: a vocabulary of bytes, and random outputs that follow a rule.

use super::*;

mod closing_marks;
mod forced_calls;
mod hostile_rules;
mod random_rules;
mod rules;
mod schemas;
mod values;

/// Seeded numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (((z ^ (z >> 27)) >> 20) % limit as u64) as usize
    }
}

/// Token that ends outputs.
const END: u32 = 0;

/// A vocabulary of an end, of bytes, and of these marks, which are special tokens or plain ones.
fn vocabulary(marks: &[&str], special: bool) -> Vec<TokenBytes> {
    let mut all = vec![TokenBytes { bytes: b"<end>".to_vec(), special: true }];
    all.extend((1..=u8::MAX).map(|byte| TokenBytes { bytes: vec![byte], special: false }));
    for mark in marks {
        all.push(TokenBytes { bytes: mark.as_bytes().to_vec(), special });
    }
    all
}

fn compiler(vocabulary: &[TokenBytes]) -> ConstraintCompiler {
    ConstraintCompiler::new(vocabulary, vocabulary.len() + 3, &[END]).unwrap()
}

/// Writes an output of random tokens; none if it does not end.
fn written(
    mut constraint: OutputConstraint,
    vocabulary: &[TokenBytes],
    seed: u64,
) -> Option<String> {
    let mut draw = Draw(seed);
    let mut bytes = Vec::new();
    for _ in 0..4_000 {
        if constraint.is_complete() {
            return String::from_utf8(bytes).ok();
        }
        let mut row = vec![0.0_f32; vocabulary.len() + 3];
        constraint.restrict(&mut row, &[END]);
        let mut allowed = Vec::new();
        for (id, logit) in row.iter().enumerate() {
            // Marks and quotes are likely, so that texts end.
            let weight = match vocabulary.get(id) {
                Some(token) if token.bytes.len() > 1 || token.bytes == b"\"" => 40,
                Some(token) if token.bytes[0].is_ascii() => 4,
                _ => 1,
            };
            allowed.extend(std::iter::repeat_n(id, if *logit == 0.0 { weight } else { 0 }));
        }
        assert!(!allowed.is_empty());
        let id = allowed[draw.below(allowed.len())] as u32;
        if id == END {
            assert!(constraint.accepts_end());
            return String::from_utf8(bytes).ok();
        }
        bytes.extend_from_slice(&vocabulary[id as usize].bytes);
        constraint.accept(id).unwrap();
    }
    None
}
