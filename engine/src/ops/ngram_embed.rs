//! `ngram_embed`: rows of a matrix by hashes of the last tokens.
//!
//! The factors of tokens are drawn by SplitMix64 (Steele et al. 2014); a hash is the exclusive or of their products.

use registry::ngram::hash_factors;

use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::round::round;
use crate::states::Memory;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("ngram_embed", NgramEmbed::prepare);
}

/// The hashes of the last tokens of each position.
pub(super) struct NgramEmbed {
    /// The factor of a token, of the one before, and so on.
    pub(super) factors: Vec<i64>,
    /// The number of rows of each hash.
    pub(super) sizes: Vec<u32>,
    /// The token that ends a text.
    pub(super) end: u32,
    /// Numbers of the rows of all hashes.
    pub(super) width: usize,
}

impl NgramEmbed {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let longest = args.count("longest")?;
        let sizes: Option<Vec<u32>> =
            args.counts("sizes")?.into_iter().map(|size| u32::try_from(size).ok()).collect();
        let sizes = sizes.ok_or_else(|| args.error("its sizes are not below 2^32"))?;
        if longest < 2 || sizes.is_empty() || sizes.len() % (longest - 1) != 0 || sizes.contains(&0)
        {
            return Err(args.error("its sizes are not of as many hashes of each length"));
        }
        let width = args.output(0)?.iter().product();
        let total: usize = sizes.iter().map(|size| *size as usize).sum();
        let fits = match args.weight("weight") {
            Some(&[rows, numbers]) => numbers * sizes.len() == width && rows >= total,
            _ => false,
        };
        if !fits || args.state_width()? != 1 {
            return Err(args.error(format!(
                "its weight does not have {total} rows of {} numbers, or its state does not hold tokens",
                width / sizes.len()
            )));
        }
        Ok(Self {
            width,
            factors: hash_factors(args.int("seed")?, args.count("vocab")?, longest),
            sizes,
            end: u32::try_from(args.count("end")?)
                .map_err(|_| args.error("its end is no token"))?,
        })
    }

    /// Returns the number of tokens before the current one that a hash takes.
    pub(super) fn needed(&self) -> usize {
        self.factors.len() - 1
    }

    /// Returns the row of each hash for a position whose tokens, the newest last, are `tokens`.
    fn rows<'a>(&'a self, tokens: &'a [u32]) -> impl Iterator<Item = usize> + 'a {
        let each = self.sizes.len() / self.needed();
        let mut seen = tokens.iter().rev();
        let mut ended = false;
        let parts: Vec<i64> = (self.factors.iter().enumerate())
            .map(|(back, factor)| {
                let token = seen.next().copied().filter(|_| !ended).unwrap_or(self.end);
                // Tokens before an end belong to another text; the current one may be an end.
                ended |= back > 0 && token == self.end;
                i64::from(token).wrapping_mul(*factor)
            })
            .collect();
        let mut offset = 0;
        self.sizes.iter().enumerate().map(move |(hash, &size)| {
            let count = hash / each + 2;
            let joined = parts[..count].iter().fold(0, |joined, part| joined ^ part);
            let row = offset + joined.rem_euclid(i64::from(size)) as usize;
            offset += size as usize;
            row
        })
    }
}

impl Kernel for NgramEmbed {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let matrix = ctx.matrix("weight")?;
        let weight = matrix.view();
        let width = self.width;
        let dtype = ctx.output_dtype(0);
        let tokens = ctx.tokens();
        let mut y = vec![0.0; tokens.len() * width];
        for chunk in ctx.chunks() {
            let wrong = ctx.error("its state does not hold tokens");
            let rows = tokens
                .get(chunk.rows.clone())
                .ok_or_else(|| ctx.error("it stands where rows of the step are left out"))?;
            let Memory::Index(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            if memory.end() != chunk.start {
                return Err(wrong);
            }
            let held = memory.tail(chunk.start.saturating_sub(self.needed()));
            let mut all: Vec<u32> = held.iter().map(|token| token.round() as u32).collect();
            let before = all.len();
            all.extend_from_slice(rows);
            let numbers: Vec<f32> = rows.iter().map(|token| *token as f32).collect();
            memory.append(&numbers);
            let lines = y[chunk.rows.start * width..chunk.rows.end * width].chunks_exact_mut(width);
            for (n, line) in lines.enumerate() {
                let seen = &all[..=before + n];
                for (row, part) in self.rows(seen).zip(line.chunks_exact_mut(weight.inputs)) {
                    weight.widen_row(row, part);
                }
                round(dtype, line);
            }
        }
        ctx.set(0, y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_before_an_end_count_as_ends() {
        let ngrams =
            NgramEmbed { factors: vec![1, 10, 100], sizes: vec![97, 101], end: 7, width: 2 };
        let rows = |tokens: &[u32]| ngrams.rows(tokens).collect::<Vec<_>>();
        let expected = |a: i64, b: i64, c: i64| {
            let pair = a ^ (10 * b);
            [(pair % 97) as usize, 97 + ((pair ^ (100 * c)) % 101) as usize]
        };
        assert_eq!(rows(&[1, 2, 3]), expected(3, 2, 1));
        assert_eq!(rows(&[3]), expected(3, 7, 7));
        assert_eq!(rows(&[1, 7, 3]), expected(3, 7, 7));
        assert_eq!(rows(&[7, 2, 3]), expected(3, 2, 7));
        assert_eq!(rows(&[1, 2, 7]), expected(7, 2, 1));
    }
}
