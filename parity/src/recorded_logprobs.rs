//! Log-probabilities of an engine on a text with unquantized weights, stored in a file: the reference if
//! there is no dump.
//!
//! They do not come from the reference code, so they prove nothing. They show the cost of a change of the
//! weights, which is comparable for any engine that runs the model.
//!
//! The reasons are in [decision 41](../../docs/decisions/0041-recorded-own-reference.md).

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use engine::{ChunkMask, Engine, ModelSource, NoProbe, OutputRows, SessionOptions};

use crate::check::Error;
use crate::cost::ReferenceLogprobs;
use crate::dump::Logprobs;
use crate::metrics::log_softmax;
use crate::run;

/// Log-probabilities of a run on some prompts.
#[derive(Debug)]
pub struct RecordedLogprobs {
    prompts: Vec<Vec<u32>>,
    vocab: usize,
    /// Rows of f32, prompt after prompt. In memory, a page of text would take gigabytes.
    file: fs_err::File,
}

impl RecordedLogprobs {
    /// Runs every prompt separately and writes the results to `path`; `each` is called after each prompt.
    pub fn record(
        engine: &dyn Engine,
        source: &ModelSource<'_>,
        prompts: Vec<Vec<u32>>,
        options: &SessionOptions,
        path: &Path,
        each: &dyn Fn(),
    ) -> Result<Self, Error> {
        let file = fs_err::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        let mut recorded = Self { prompts: Vec::new(), vocab: source.model.vocab, file };
        let mut session = engine.open(source, options)?;
        for tokens in prompts {
            let slot = session.open_slot();
            let logits =
                run::feed_chunk(session.as_mut(), slot, &tokens, OutputRows::All, &mut NoProbe);
            session.release(slot)?;
            recorded.push(tokens, &logits?.data)?;
            each();
        }
        Ok(recorded)
    }

    /// Returns the offset of the rows of a prompt.
    fn begin(&self, prompt: usize) -> u64 {
        let before: usize = self.prompts[..prompt].iter().map(Vec::len).sum();
        before as u64 * self.row_bytes() as u64
    }

    fn row_bytes(&self) -> usize {
        self.vocab * size_of::<f32>()
    }

    fn push(&mut self, tokens: Vec<u32>, logits: &[f32]) -> Result<(), Error> {
        let mut at = self.begin(self.prompts.len());
        let mut row = vec![0.0; self.vocab];
        for logits in logits.chunks_exact(self.vocab.max(1)) {
            log_softmax(logits, &mut row);
            let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
            self.file.file().write_all_at(&bytes, at)?;
            at += bytes.len() as u64;
        }
        self.prompts.push(tokens);
        Ok(())
    }
}

impl ReferenceLogprobs for RecordedLogprobs {
    fn prompts(&self) -> Vec<(&[u32], ChunkMask<'_>)> {
        self.prompts.iter().map(|tokens| (&tokens[..], ChunkMask::default())).collect()
    }

    fn logprobs(&self, prompt: usize) -> Result<Option<(Vec<usize>, Logprobs)>, Error> {
        let Some(tokens) = self.prompts.get(prompt) else { return Ok(None) };
        let mut bytes = vec![0; tokens.len() * self.row_bytes()];
        self.file.file().read_exact_at(&mut bytes, self.begin(prompt))?;
        let (numbers, _) = bytes.as_chunks();
        let values = numbers.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let rows = tokens.len();
        let width = self.vocab;
        let rows = Logprobs { rows, width, ids: None, values, targets: None };
        Ok(Some(((0..tokens.len()).collect(), rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prompt_has_its_own_rows() {
        let file = fs_err::File::from_parts(tempfile::tempfile().unwrap(), "rows");
        let mut recorded = RecordedLogprobs { prompts: Vec::new(), vocab: 2, file };
        recorded.push(vec![7], &[0.0, 0.0]).unwrap();
        recorded.push(vec![8, 9], &[0.0, 3.0, 1.0, 1.0]).unwrap();
        let tokens: Vec<&[u32]> = recorded.prompts().into_iter().map(|prompt| prompt.0).collect();
        assert_eq!(tokens, [&[7][..], &[8, 9]]);
        let half = 0.5_f32.ln();
        let first = recorded.logprobs(0).unwrap().unwrap().1;
        assert_eq!((first.rows, &first.values[..]), (1, &[half, half][..]));
        let second = recorded.logprobs(1).unwrap().unwrap().1;
        assert_eq!((second.rows, &second.values[2..]), (2, &[half, half][..]));
        assert!(second.values[1] > second.values[0]);
        assert!(recorded.logprobs(2).unwrap().is_none());
    }
}
