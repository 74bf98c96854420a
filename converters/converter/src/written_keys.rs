//! Compares the keys of a GGUF file with those that the conversion of its source writes.

use std::collections::BTreeSet;

use conversion::mix::MixTarget;
use formats::codec::BlockType;
use formats::gguf::split::{SET_KEY, SET_KEYS, SetName};
use formats::gguf::{ALIGNMENT_KEY, GgufFile, Metadata, MetadataValue, VERSION};
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
/// Keys of a file whose blocks an importance matrix weighted.
const IMPORTANCE_KEYS: [&str; 3] =
    ["quantize.imatrix.file", "quantize.imatrix.entries_count", "quantize.imatrix.chunks_count"];
/// Key of such a file, if the matrix names its text.
const DATASET_KEY: &str = "quantize.imatrix.dataset";

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

    /// True if the file has what a conversion writes: its own keys are inside, or the options name the route of another
    /// program whose bytes it has.
    fn is_reproducible(&self) -> bool {
        self.has_config() || self.run.options.types.identity()
    }

    /// True if an importance matrix weighted the blocks.
    fn is_weighted(&self) -> bool {
        let metadata = self.file.metadata();
        IMPORTANCE_KEYS.iter().all(|key| metadata.get(key).is_some())
    }

    /// True if the source determines every block: a conversion of it wrote them, without an importance matrix.
    pub(crate) fn determine_blocks(&self) -> bool {
        self.is_reproducible() && !self.is_weighted()
    }

    /// Lists all differences of the keys from those that the conversion writes.
    ///
    /// Of another program's file, the keys of the model and of the tokenizer are compared, by their values. Of a file of this
    /// program, every key has to be there, in its type, and no other.
    pub(crate) fn faults(&self, imatrix: Option<&Imatrix>) -> Result<Vec<String>> {
        let metadata = self.file.metadata();
        if !self.is_reproducible() {
            self.run.observer.note(&format!(
                "note: the file has no key `{}`, so it is compared as a file of another program",
                gguf::CONFIG_KEY
            ));
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
        let compared = expected.iter().filter_map(|(key, expected)| match metadata.get(key) {
            // A folder that is moved gives another name, which is noted.
            Some(MetadataValue::String(_)) if key == NAME_KEY => None,
            actual => difference(key, actual, expected),
        });
        let mut faults: Vec<String> = compared.collect();
        for (n, metadata) in self.file.metadata_of_files().iter().enumerate() {
            let added = metadata.iter().map(|(key, _)| key);
            let added = added.filter(|key| !self.may_have(n, key, &expected));
            faults.extend(added.map(|key| {
                let file = self.file.files()[n].display();
                let key = formats::shown(key);
                format!("`{file}`: key `{key}` is none that the conversion writes")
            }));
        }
        if self.file.version() != VERSION {
            let version = self.file.version();
            faults.push(format!("the version of the format is {version}, expected {VERSION}"));
        }
        faults.extend(self.wrong_file_type(file_type, imatrix));
        self.note_name(&expected);
        Ok(faults)
    }

    /// True for a key that the conversion may write into file `n` of a set. Files of other programs describe the model in
    /// more words.
    fn may_have(&self, n: usize, key: &str, expected: &Metadata) -> bool {
        let in_set = self.is_in_set() && (SET_KEYS.contains(&key) || key == SET_KEY);
        let weighted = self.is_weighted() && (IMPORTANCE_KEYS.contains(&key) || key == DATASET_KEY);
        let described = !self.has_config() && key.starts_with("general.");
        in_set
            || (n > 0 && key == ALIGNMENT_KEY)
            || (n == 0 && (weighted || described || expected.get(key).is_some()))
    }

    /// True for a set of files. A set may have one file, which has the name of one.
    fn is_in_set(&self) -> bool {
        let [file] = self.file.files() else { return true };
        file.file_name().and_then(|name| name.to_str()).and_then(SetName::parse).is_some()
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
        if named.contains(&file_type) {
            return None;
        }
        if named.is_empty() {
            let mut types = BlockType::declared().filter(|ty| has_file_type(*ty, file_type));
            let is_used = types.any(|ty| self.file.tensors().iter().any(|info| info.ty == ty));
            return (!is_used).then(|| {
                format!("key `{FILE_TYPE_KEY}` is {file_type}, and no tensor has a type of it")
            });
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

/// True if files with most tensors of a type may have this file type.
fn has_file_type(ty: BlockType, file_type: u32) -> bool {
    ty.file_types().iter().any(|file| file.id == file_type)
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
