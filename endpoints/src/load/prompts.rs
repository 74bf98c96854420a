//! Prompts of load tests: random ones, and those of a file.

use std::fmt::Write as _;
use std::path::PathBuf;

use fastrand::Rng;

use super::lengths::LengthDistribution;
use super::prompt_file::{LoadPrompt, PromptContent, PromptFileError, parse_prompts};

/// Form of random prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptForm {
    /// Token ids if the server takes them, else text.
    Auto,
    /// Token ids.
    Ids,
    /// Text.
    Text,
}

/// Tokenizer of the model behind a server, for text of an exact number of tokens.
pub trait PromptTokenizer {
    /// Returns the tokens of a text, without special tokens.
    fn encode(&self, text: &str) -> Result<Vec<u32>, LoadPromptError>;
    /// Returns the text of tokens, without special tokens.
    fn decode(&self, ids: &[u32]) -> Result<String, LoadPromptError>;
}

/// Reason why there are no prompts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadPromptError {
    /// There is no file to read.
    #[error("there is no file of prompts")]
    NoFile,
    /// The file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        why: std::io::Error,
    },
    /// The file holds something else.
    #[error("`{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        why: PromptFileError,
    },
    /// A prompt is for another endpoint.
    #[error(
        "prompt {number} of `{}` is not for this endpoint: token ids need the option `endpoint completions`, and messages need \
         the option `endpoint chat`",
        path.display()
    )]
    Endpoint {
        /// Number of the prompt, counted from 1.
        number: usize,
        /// The file.
        path: PathBuf,
    },
    /// The prompts do not fit in memory.
    #[error("the prompts have {total} tokens together; at most {MOST_TOKENS} fit in memory")]
    TooMany {
        /// Tokens of all prompts.
        total: usize,
    },
    /// The tokenizer fails.
    #[error("{0}")]
    Tokenizer(String),
}

/// Token ids of random prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vocabulary {
    low: u32,
    high: u32,
}

impl Vocabulary {
    /// Returns the ids below the size of a vocabulary. The first ids, which are often special, are left
    /// out. Without a size, the ids are below 1000, which the vocabulary of nearly every model exceeds.
    pub fn below(size: Option<u64>) -> Self {
        let high = size.unwrap_or(1000).clamp(2, 1 << 28) as u32;
        Self { low: (high / 4).min(100), high }
    }

    fn draw(self, count: usize, rng: &mut Rng) -> Vec<u32> {
        std::iter::repeat_with(|| rng.u32(self.low..self.high)).take(count).collect()
    }
}

/// Description of the prompts.
pub struct PromptSource<'a> {
    /// File of prompts; random ones without it.
    pub file: Option<PathBuf>,
    /// True if prompts are messages of a chat.
    pub chat: bool,
    /// Tokens of random prompts.
    pub input: LengthDistribution,
    /// Generated tokens.
    pub output: LengthDistribution,
    /// Number of tokens that all random prompts begin with.
    pub prefix: usize,
    /// Form of random prompts.
    pub form: PromptForm,
    /// Ids of random prompts.
    pub vocabulary: Vocabulary,
    /// Tokenizer of text of an exact number of tokens.
    pub tokenizer: Option<&'a dyn PromptTokenizer>,
}

/// Words of random text: common ones, each a token of most vocabularies.
const WORDS: &str = "time year people way day man thing woman life child world school state family \
    student group country problem hand part place case week company system program question work \
    government number night point home water room mother area money story fact month lot right \
    study book eye job word business issue side kind head house service friend father power hour \
    game line end member law car city community name president team minute idea body information";
/// Maximum number of tokens of all random prompts.
const MOST_TOKENS: usize = 1 << 28;
/// Maximum number of attempts at a text of an exact number of tokens, as in `vllm bench serve`.
const ATTEMPTS: usize = 10;

impl PromptSource<'_> {
    /// Returns the prompts of `count` requests, fewer if the file has fewer.
    pub fn requests(&self, count: usize, seed: u64) -> Result<Vec<LoadPrompt>, LoadPromptError> {
        let outputs = self.output.draw(count, seed ^ 1);
        let mut prompts =
            if self.file.is_some() { self.of_file(count)? } else { self.random(count, seed)? };
        for (prompt, output) in prompts.iter_mut().zip(outputs) {
            let reply = prompt.reply.take().zip(self.tokenizer);
            let reply =
                reply.and_then(|(text, tokenizer)| Some(tokenizer.encode(&text).ok()?.len()));
            prompt.output = prompt.output.or(reply.filter(|count| *count > 0)).or(Some(output));
        }
        Ok(prompts)
    }

    /// Returns a small prompt of random token ids, which shows if a server takes ids.
    pub fn probe(&self, seed: u64) -> LoadPrompt {
        let ids = self.vocabulary.draw(4, &mut Rng::with_seed(seed));
        LoadPrompt { output: Some(1), ..LoadPrompt::new(PromptContent::Ids(ids)) }
    }

    fn of_file(&self, count: usize) -> Result<Vec<LoadPrompt>, LoadPromptError> {
        let Some(path) = self.file.as_deref() else { return Err(LoadPromptError::NoFile) };
        let text = registry::file::read_text(path, registry::file::REPORT)
            .map_err(|why| LoadPromptError::Unreadable { path: path.to_owned(), why })?;
        let prompts = parse_prompts(&text, count)
            .map_err(|why| LoadPromptError::File { path: path.to_owned(), why })?;
        for (n, prompt) in prompts.iter().enumerate() {
            let fits = match prompt.content {
                PromptContent::Text(_) => true,
                PromptContent::Ids(_) => !self.chat,
                PromptContent::Messages(_) => self.chat,
            };
            if !fits {
                return Err(LoadPromptError::Endpoint { number: n + 1, path: path.to_owned() });
            }
        }
        Ok(prompts)
    }

    fn random(&self, count: usize, seed: u64) -> Result<Vec<LoadPrompt>, LoadPromptError> {
        let lengths = self.input.draw(count, seed);
        let total: usize = lengths.iter().map(|length| length + self.prefix).sum();
        if total > MOST_TOKENS {
            return Err(LoadPromptError::TooMany { total });
        }
        let mut rng = Rng::with_seed(seed);
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        let mut prefix_rng = Rng::with_seed(seed ^ 2);
        let prefix = self.vocabulary.draw(self.prefix, &mut prefix_rng);
        let mut prefix_text = String::new();
        for _ in 0..self.prefix {
            let _ = write!(prefix_text, "{} ", words[prefix_rng.usize(..words.len())]);
        }
        let mut prompts = Vec::with_capacity(count);
        for length in lengths {
            let prompt = match (self.form, self.tokenizer) {
                (PromptForm::Ids | PromptForm::Auto, _) => {
                    let mut ids = prefix.clone();
                    ids.extend(self.vocabulary.draw(length, &mut rng));
                    LoadPrompt::new(PromptContent::Ids(ids))
                }
                (PromptForm::Text, Some(tokenizer)) => {
                    let mut ids = prefix.clone();
                    ids.extend(self.vocabulary.draw(length, &mut rng));
                    self.text_of(tokenizer, ids, &mut rng)?
                }
                (PromptForm::Text, None) => {
                    let mut text = prefix_text.clone();
                    for n in 0..length {
                        let space = if n == 0 { "" } else { " " };
                        let _ = write!(text, "{space}{}", words[rng.usize(..words.len())]);
                    }
                    LoadPrompt::new(PromptContent::Text(text))
                }
            };
            prompts.push(prompt);
        }
        Ok(prompts)
    }

    /// Returns text that has as many tokens as `ids`, as far as a few attempts find one.
    fn text_of(
        &self,
        tokenizer: &dyn PromptTokenizer,
        mut ids: Vec<u32>,
        rng: &mut Rng,
    ) -> Result<LoadPrompt, LoadPromptError> {
        let count = ids.len();
        let mut text = tokenizer.decode(&ids)?;
        let mut tokens = 0;
        for _ in 0..ATTEMPTS {
            ids = tokenizer.encode(&text)?;
            tokens = ids.len();
            if tokens == count {
                break;
            }
            if tokens < count {
                ids.extend(self.vocabulary.draw(count - tokens, rng));
            } else {
                ids.truncate(count);
            }
            text = tokenizer.decode(&ids)?;
        }
        let mut prompt = LoadPrompt::new(PromptContent::Text(text));
        prompt.tokens = Some(tokens as u64).filter(|_| !self.chat);
        Ok(prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(form: PromptForm) -> PromptSource<'static> {
        PromptSource {
            file: None,
            chat: false,
            input: LengthDistribution::Uniform(5, 9),
            output: LengthDistribution::Fixed(3),
            prefix: 4,
            form,
            vocabulary: Vocabulary::below(Some(50)),
            tokenizer: None,
        }
    }

    #[test]
    fn random_ids_are_of_the_vocabulary_and_share_their_prefix() {
        let prompts = source(PromptForm::Ids).requests(20, 3).unwrap();
        let ids: Vec<&Vec<u32>> = prompts
            .iter()
            .map(|prompt| match &prompt.content {
                PromptContent::Ids(ids) => ids,
                other => panic!("{other:?}"),
            })
            .collect();
        let shared = &ids[0][..4];
        assert!(ids.iter().all(|ids| ids[..4] == *shared && (9..=13).contains(&ids.len())));
        assert!(ids.iter().flat_map(|ids| ids.iter()).all(|id| (12..50).contains(id)));
        assert!(ids[0][4..] != ids[1][4..9.min(ids[1].len())]);
        assert!(prompts.iter().all(|prompt| prompt.output == Some(3)));
        assert_eq!(prompts, source(PromptForm::Ids).requests(20, 3).unwrap());
        assert_ne!(prompts, source(PromptForm::Ids).requests(20, 4).unwrap());
    }

    #[test]
    fn random_text_has_as_many_words_as_tokens_were_asked_for() {
        for prompt in source(PromptForm::Text).requests(20, 3).unwrap() {
            let PromptContent::Text(text) = &prompt.content else { panic!("{prompt:?}") };
            assert!((9..=13).contains(&text.split(' ').count()), "{text}");
            assert_eq!(prompt.tokens, None, "words are no tokens");
        }
    }

    #[test]
    fn a_vocabulary_of_any_size_has_ids() {
        for (size, low, high) in [(Some(0), 0, 2), (Some(3), 0, 3), (None, 100, 1000)] {
            assert_eq!(Vocabulary::below(size), Vocabulary { low, high });
        }
        assert_eq!(Vocabulary::below(Some(u64::MAX)).high, 1 << 28);
    }

    #[test]
    fn prompts_beyond_memory_are_refused() {
        let mut source = source(PromptForm::Ids);
        source.input = LengthDistribution::Fixed(1 << 24);
        let error = source.requests(1000, 0).unwrap_err().to_string();
        assert!(error.contains("fit in memory"), "{error}");
    }
}
