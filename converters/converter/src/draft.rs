//! Draft of a GGUF file before its layout: keys, and the chosen types.

use std::path::PathBuf;

use conversion::gguf::{self as plan, GgufOutput, GgufPlan};
use conversion::mix::LEVELS;
use formats::codec::BlockType;
use formats::gguf::Metadata;
use formats::gguf::split::SET_KEY;
use formats::imatrix::Imatrix;
use models::gguf;

use crate::error::Result;
use crate::format::GgufFormat;
use crate::gguf_model::GgufModel;
use crate::run::ConversionRun;
use crate::set_id;

/// Keys and types of a file.
pub(crate) struct GgufDraft {
    pub(crate) output: GgufOutput,
    pub(crate) keys: Metadata,
    /// Types that each tensor may be raised to.
    pub(crate) levels: Vec<[BlockType; LEVELS]>,
}

impl ConversionRun<'_> {
    /// Chooses the types and keys of one format.
    pub(crate) fn draft(
        &self,
        source: &GgufModel<'_>,
        format: &GgufFormat,
        path: PathBuf,
        imatrix: Option<&Imatrix>,
    ) -> Result<GgufDraft> {
        let none = Metadata::new();
        // The choice of types needs the numbers of heads and layers, which are in the keys.
        let facts = plan::keys(&source.gguf, "", &none, 0);
        let chosen = self.options.types.choose(format, source, &facts, imatrix)?;
        let factors =
            plan::factors(&source.tensors, &chosen.choices, self.options.types.identity());
        let output = GgufOutput {
            path,
            choices: chosen.choices,
            file_type: chosen.file_type,
            split: self.options.split_max_size,
            shard: self.options.shard.map(|(no, _)| no),
            via: chosen.via,
            dims: self.options.types.dims(),
            importance: chosen.importance,
            factors,
        };
        if let Some(warning) = plan::ignored_factors(&source.gguf.arch, &output, &source.tensors) {
            self.observer.note(&format!("warning: {warning}"));
        }
        let keys = self.keys(source, output.file_type, &chosen.keys);
        Ok(GgufDraft { output, keys, levels: chosen.levels })
    }

    /// Returns the keys of a file, except those of a set.
    pub(crate) fn keys(
        &self,
        source: &GgufModel<'_>,
        file_type: u32,
        of_importance: &Metadata,
    ) -> Metadata {
        let mut keys = plan::keys(&source.gguf, &source.name, &source.tokenizer, file_type);
        for (key, value) in of_importance.iter() {
            keys.set(key, value.clone());
        }
        if self.options.types.identity() {
            return keys;
        }
        keys.set(gguf::CONFIG_KEY, source.config.as_str());
        // Facts that the config does not determine.
        let spec = &source.spec;
        if !spec.builtin {
            keys.set(gguf::SPEC_KEY, format!("{} {}", spec.name, spec.sha256));
        } else if self.options.opened.spec.is_some() {
            keys.set(gguf::SPEC_KEY, spec.name.as_str());
        }
        if !self.options.opened.set.is_empty() {
            keys.set(gguf::OVERRIDES_KEY, self.options.opened.set.join("\n").as_str());
        }
        keys
    }

    /// Lays out the files of one format.
    pub(crate) fn lay_out(
        &self,
        source: &GgufModel<'_>,
        draft: &mut GgufDraft,
    ) -> Result<Vec<GgufPlan>> {
        let GgufDraft { output, keys, .. } = draft;
        if let Some((_, count)) = self.options.shard {
            output.split = Some(plan::even_limit(output, keys, &source.tensors, count)?);
        }
        if output.split.is_some() {
            let identity = self.options.types.identity();
            let set_id = self.set_key(|| set_id::of_gguf(source, output, identity))?;
            keys.set(SET_KEY, set_id.as_str());
        }
        Ok(plan::lay_out(output, keys, &source.tensors)?)
    }

    /// Returns an error for existing files before anything is measured for them.
    pub(crate) fn refuse_taken(&self, files: &[GgufPlan]) -> Result<()> {
        let mine = files
            .iter()
            .enumerate()
            .filter(|(no, _)| self.options.shard.is_none_or(|(mine, _)| mine == *no));
        for (_, file) in mine {
            let output = file.path.clone();
            let allowed = self.options.force || self.options.resume || !output.exists();
            if !allowed {
                return Err(conversion::Error::Exists { output }.into());
            }
        }
        Ok(())
    }
}
