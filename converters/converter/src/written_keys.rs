//! Compares the keys of a GGUF file with those that the conversion of its source writes.

use std::collections::BTreeSet;

use conversion::mix::MixTarget;
use formats::gguf::split::SET_KEY;
use formats::gguf::{GgufFile, Metadata, MetadataValue, VERSION};
use formats::imatrix::Imatrix;
use models::gguf;
use registry::gguf::key_differences;

use crate::error::Result;
use crate::format::GgufFormat;
use crate::gguf_model::GgufModel;
use crate::run::ConversionRun;

/// Key with the name of a model. A folder that is moved gives another name.
const NAME_KEY: &str = "general.name";
/// Key with the mix of types.
const FILE_TYPE_KEY: &str = "general.file_type";
/// Prefix of the keys about an importance matrix.
const IMPORTANCE: &str = "quantize.imatrix.";
/// Prefix of the keys of a set, which are compared when the set is opened.
const SPLIT: &str = "split.";

/// Keys of a file, and the model that it should have been made of.
pub(crate) struct FileKeys<'a> {
    pub(crate) run: ConversionRun<'a>,
    pub(crate) model: &'a GgufModel<'a>,
    pub(crate) file: &'a GgufFile,
}

impl FileKeys<'_> {
    /// True if this program wrote the file with the config inside. A damaged name of the key hides no config.
    fn has_config(&self) -> bool {
        let config = self.model.config.as_str();
        self.file.metadata().iter().any(|(key, value)| {
            key == gguf::CONFIG_KEY
                || matches!(value, MetadataValue::String(text) if text == config)
        })
    }

    /// True if the source determines every block: this program wrote them, without an importance matrix.
    pub(crate) fn determine_blocks(&self) -> bool {
        self.has_config()
            && !self.file.metadata().iter().any(|(key, _)| key.starts_with(IMPORTANCE))
    }

    /// Lists all differences of the keys from those that the conversion writes.
    ///
    /// Of another program's file, the keys of the model and of the tokenizer are compared, by their values. Of a file of this
    /// program, every key has to be there, in its type, and no other.
    pub(crate) fn faults(&self, imatrix: Option<&Imatrix>) -> Result<Vec<String>> {
        let metadata = self.file.metadata();
        if !self.has_config() {
            let mut faults = self.other_values()?;
            faults.extend(self.model.tokenizer.iter().filter_map(|(key, expected)| {
                // Programs that write files leave out flags that are false.
                let is_default = *expected == MetadataValue::Bool(false);
                difference(key, metadata.get(key), expected)
                    .filter(|_| !is_default || metadata.get(key).is_some())
            }));
            return Ok(faults);
        }
        let file_type = metadata.u32(FILE_TYPE_KEY).ok().flatten().unwrap_or_default();
        let expected = self.run.keys(self.model, file_type, &Metadata::new());
        let compared = expected.iter().filter(|(key, _)| *key != NAME_KEY);
        let mut faults: Vec<String> = compared
            .filter_map(|(key, expected)| difference(key, metadata.get(key), expected))
            .collect();
        let others = metadata.iter().map(|(key, _)| key).filter(|key| {
            let may_be_added = [NAME_KEY, SET_KEY].contains(key)
                || key.starts_with(SPLIT)
                || key.starts_with(IMPORTANCE);
            !may_be_added && expected.get(key).is_none()
        });
        faults.extend(others.map(|key| {
            format!("key `{}` is none that the conversion writes", formats::shown(key))
        }));
        if self.file.version() != VERSION {
            let version = self.file.version();
            faults.push(format!("the version of the format is {version}, expected {VERSION}"));
        }
        faults.extend(self.wrong_file_type(file_type, imatrix));
        self.note_name(&expected);
        Ok(faults)
    }

    /// Lists the keys of the model with other values than those of its source.
    pub(crate) fn other_values(&self) -> Result<Vec<String>> {
        let arch = self.file.metadata().str("general.architecture")?.unwrap_or_default();
        let gguf = &self.model.gguf;
        let arch_fault = (arch != gguf.arch)
            .then(|| format!("the architecture is `{arch}`, expected `{}`", gguf.arch));
        let keys = key_differences(gguf, &formats::gguf::evidence(self.file, arch));
        Ok(arch_fault.into_iter().chain(keys).collect())
    }

    /// Describes a mix of types that is not that of the tensors. Types that were chosen one by one have the name of any mix.
    fn wrong_file_type(&self, file_type: u32, imatrix: Option<&Imatrix>) -> Option<String> {
        let facts = conversion::gguf::keys(&self.model.gguf, "", &Metadata::new(), 0);
        let named: BTreeSet<u32> = MixTarget::all()
            .filter_map(|target| {
                let format = GgufFormat::of(target);
                let types = &self.run.options.types;
                let chosen = types.choose(&format, self.model, &facts, imatrix).ok()?;
                let mut tensors = self.model.tensors.iter().zip(&chosen.choices);
                tensors
                    .all(|(tensor, choice)| {
                        self.file.info(&tensor.name).is_some_and(|info| info.ty == choice.ty)
                    })
                    .then_some(chosen.file_type)
            })
            .collect();
        if named.is_empty() || named.contains(&file_type) {
            return None;
        }
        let expected: Vec<String> = named.iter().map(u32::to_string).collect();
        Some(format!(
            "key `{FILE_TYPE_KEY}` is {file_type}; the types of the tensors are those of {}",
            expected.join(" or ")
        ))
    }

    /// Notes another name of the model.
    fn note_name(&self, expected: &Metadata) {
        let actual = self.file.metadata().get(NAME_KEY);
        if let (Some(actual), Some(expected)) = (actual, expected.get(NAME_KEY))
            && actual != expected
        {
            self.run.observer.note(&format!(
                "note: key `{NAME_KEY}` is {}, and the source is called {}",
                brief(actual),
                brief(expected)
            ));
        }
    }
}

/// Describes the difference of a key from its expected value.
fn difference(
    key: &str,
    actual: Option<&MetadataValue>,
    expected: &MetadataValue,
) -> Option<String> {
    let Some(actual) = actual else { return Some(format!("key `{key}` is missing")) };
    value_difference(actual, expected).map(|what| format!("key `{key}` {what}"))
}

/// Describes the first difference between two values of a key.
fn value_difference(actual: &MetadataValue, expected: &MetadataValue) -> Option<String> {
    if actual == expected {
        return None;
    }
    let (MetadataValue::Array(items), MetadataValue::Array(expected_items)) = (actual, expected)
    else {
        let [actual_type, expected_type] = if actual.kind() == expected.kind() {
            [String::new(), String::new()]
        } else {
            [actual, expected].map(|value| format!(" ({})", value.kind_name()))
        };
        return Some(format!(
            "is {}{actual_type}; the model's would be {}{expected_type}",
            brief(actual),
            brief(expected)
        ));
    };
    if items.kind() != expected_items.kind() || items.len() != expected_items.len() {
        return Some(format!(
            "is {} {} values; the model's would be {} {}",
            items.len(),
            items.kind(),
            expected_items.len(),
            expected_items.kind()
        ));
    }
    let n = (0..items.len()).find(|&n| items.get(n) != expected_items.get(n))?;
    let item = items.get(n).as_ref().map(brief)?;
    let expected_item = expected_items.get(n).as_ref().map(brief)?;
    Some(format!("has {item} at {n}; the model's would have {expected_item}"))
}

/// Returns a value as a message shows it.
fn brief(value: &MetadataValue) -> String {
    match value {
        MetadataValue::String(text) => format!("`{}`", formats::shown(text)),
        MetadataValue::Bool(flag) => flag.to_string(),
        MetadataValue::F32(x) => x.to_string(),
        MetadataValue::F64(x) => x.to_string(),
        other => other.integer().map_or_else(|| other.kind_name(), |n| n.to_string()),
    }
}
