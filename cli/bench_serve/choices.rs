//! Choices of `onboard bench-serve` on the command line.

use clap::ValueEnum;
use endpoints::load::{PromptForm, ReportForm, ReportStyle};

/// Form of random prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FormChoice {
    /// Token ids if the server takes them, else text
    Auto,
    /// Token ids
    Ids,
    /// Text
    Text,
}

impl FormChoice {
    pub(super) fn form(self) -> PromptForm {
        match self {
            Self::Auto => PromptForm::Auto,
            Self::Ids => PromptForm::Ids,
            Self::Text => PromptForm::Text,
        }
    }
}

/// Form of the results.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum ReportChoice {
    /// A table like those of other clients
    Text,
    /// A Markdown table
    Md,
    /// A header and one line
    Csv,
    /// One document
    Json,
    /// One object on a line
    Jsonl,
}

impl ReportChoice {
    pub(super) fn form(self) -> ReportForm {
        match self {
            Self::Text => ReportForm::Text,
            Self::Md => ReportForm::Md,
            Self::Csv => ReportForm::Csv,
            Self::Json => ReportForm::Json,
            Self::Jsonl => ReportForm::Jsonl,
        }
    }
}

/// Names and order of the rows, and the chunks that count as output.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum StyleChoice {
    /// Names of vllm, and rows that it has not
    Onboard,
    /// As `vllm bench serve`
    Vllm,
    /// As sglang.bench_serving
    Sglang,
}

impl StyleChoice {
    pub(super) fn style(self) -> ReportStyle {
        match self {
            Self::Onboard => ReportStyle::Onboard,
            Self::Vllm => ReportStyle::Vllm,
            Self::Sglang => ReportStyle::Sglang,
        }
    }
}
