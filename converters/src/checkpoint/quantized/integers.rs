//! GPTQ and AWQ: whole numbers of a few bits in words of 32, with a zero and a scale per group of
//! inputs. Both keep the matrix with its inputs as rows.

use super::read::Scales;
use crate::flow::Numbers;

/// Word `n` of a tensor of words.
fn word(bytes: &[u8], n: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(n).map_or(0, |word| u32::from_le_bytes(*word))
}

/// Numbers lie one behind the other in a word, along the inputs; zeros along the outputs.
pub(super) struct Gptq<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scales: Scales<'a>,
    pub(super) zeros: &'a [u8],
    /// The group of each input, where groups are no stretches.
    pub(super) order: Option<&'a [u8]>,
    pub(super) bits: u32,
    /// Zeros are kept one too low.
    pub(super) plus_one: bool,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

impl Numbers for Gptq<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        let per_word = (32 / self.bits) as usize;
        let mask = (1_u32 << self.bits) - 1;
        let groups = self.scales.count() / self.outputs;
        let size = self.inputs.div_ceil(groups);
        let field = |word: u32, n: usize| word >> (n % per_word * self.bits as usize) & mask;
        for (n, x) in (at..).zip(out) {
            let (output, input) = (n / self.inputs, n % self.inputs);
            let group = match self.order {
                Some(order) => (word(order, input) as usize).min(groups - 1),
                None => input / size,
            };
            let code = word(self.codes, input / per_word * self.outputs + output);
            let place = group * self.outputs + output;
            let zero = field(word(self.zeros, place / per_word), output) + u32::from(self.plus_one);
            *x = (field(code, input) as f32 - zero as f32) * self.scales.at(place);
        }
    }
}

/// Numbers of eight outputs lie in a word, the even ones in its first half.
pub(super) struct Awq<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scales: Scales<'a>,
    pub(super) zeros: &'a [u8],
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

impl Numbers for Awq<'_> {
    fn read(&self, at: usize, out: &mut [f32]) {
        /// Where in its word each of eight outputs is.
        const PLACE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
        let groups = self.scales.count() / self.outputs;
        let size = self.inputs.div_ceil(groups);
        for (n, x) in (at..).zip(out) {
            let (output, input) = (n / self.inputs, n % self.inputs);
            let field = |word: u32| (word >> (PLACE[output % 8] * 4) & 15) as f32;
            let code = word(self.codes, (input * self.outputs + output) / 8);
            let place = input / size * self.outputs + output;
            *x = (field(code) - field(word(self.zeros, place / 8))) * self.scales.at(place);
        }
    }
}
