//! Comparison of a checkpoint or a GGUF file with a record.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use formats::gguf::GgufFile;
use tokenizer::ReferenceTokenizer;
use tokenizer::check::LlamaTokenizer;

use super::{ChatRecord, ChatReport, ChatTokensError, RECORD, RecordError};
use crate::template::{Template, TemplateError};

/// Reason why a model cannot be compared with a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelChatError {
    /// The template cannot be read.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// The file cannot be read.
    #[error("cannot read `{}` as a GGUF file", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Fault of the file.
        source: formats::gguf::Error,
    },
}

/// Comparison of a model with a record.
#[derive(Debug)]
pub struct ModelChatCheck {
    /// Differences and warnings.
    pub report: ChatReport,
    /// Reason why tokens are not compared.
    pub without_tokens: Option<String>,
}

impl ChatRecord {
    /// Reads the record of a dump, or of the dump beside a model.
    pub fn of_model(model: &Path, reference: Option<&Path>) -> Result<Self, RecordError> {
        let home = if model.is_dir() { model } else { model.parent().unwrap_or(model) };
        let candidates: Vec<PathBuf> = match reference {
            Some(dump) => vec![dump.to_owned()],
            None => vec![home.join("reference"), home.join("dump")],
        };
        let recorded = candidates.iter().find(|dump| dump.join(RECORD).is_file());
        Self::read(recorded.unwrap_or(&candidates[0]))
    }

    /// Compares a checkpoint or a GGUF file with the record.
    pub fn check_model(&self, model: &Path) -> Result<ModelChatCheck, ModelChatError> {
        if model.is_dir() { self.check_folder(model) } else { self.check_file(model) }
    }

    /// Compares the files of a checkpoint.
    fn check_folder(&self, model: &Path) -> Result<ModelChatCheck, ModelChatError> {
        let template = match Template::open(model) {
            Ok(template) => Some(template),
            Err(TemplateError::Missing { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let Some(tokenizer) = ReferenceTokenizer::read(model)? else {
            let without_tokens = Some("there is no tokenizer.json".to_owned());
            return Ok(ModelChatCheck {
                report: self.check(template.as_ref(), None),
                without_tokens,
            });
        };
        let report = self.check(
            template.as_ref(),
            Some(&|text, around| tokenizer.encode(text, around).map_err(failure)),
        );
        Ok(ModelChatCheck { report, without_tokens: None })
    }

    /// Compares the keys of a GGUF file.
    fn check_file(&self, model: &Path) -> Result<ModelChatCheck, ModelChatError> {
        let file = GgufFile::open(model)
            .map_err(|source| ModelChatError::File { file: model.to_owned(), source })?;
        let template = Template::from_gguf(model, file.metadata());
        let tokenizer = match LlamaTokenizer::new(file.metadata()) {
            Ok(tokenizer) => tokenizer,
            Err(why) => {
                let without_tokens = Some(why.to_string());
                return Ok(ModelChatCheck {
                    report: self.check(template.as_ref(), None),
                    without_tokens,
                });
            }
        };
        let report =
            self.check(template.as_ref(), Some(&|text, around| encode(&tokenizer, text, around)));
        Ok(ModelChatCheck { report, without_tokens: None })
    }
}

/// Returns the tokens of a text by the keys of a file; `around` adds those that begin a prompt.
fn encode(
    tokenizer: &LlamaTokenizer,
    text: &str,
    around: bool,
) -> Result<Vec<u32>, ChatTokensError> {
    let ids = if around { tokenizer.prompt(text) } else { tokenizer.conversation(text) };
    ids.map_err(failure)
}

fn failure(error: impl Display) -> ChatTokensError {
    ChatTokensError(error.to_string())
}
