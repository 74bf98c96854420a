//! Settings of a checkpoint's processors, from its configuration files.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use registry::config::Config;
use registry::diag::Finding;
use registry::scalar::Scalar;

use crate::sheet::{ProcessorSheet, SizeSide};

/// Configuration of an image processor.
pub(crate) const IMAGE_FILE: &str = "preprocessor_config.json";
/// Configuration of a whole processor, which may hold that of its image processor.
pub(crate) const WHOLE_FILE: &str = "processor_config.json";
const TOKENIZER_FILE: &str = "tokenizer_config.json";
/// The object of an image processor in the configuration of a whole one.
const INNER: &str = "image_processor";
/// Keys that name classes or that no call without them changes: pictures are RGB and results are tensors.
const NEUTRAL: [&str; 13] = [
    "_processor_class",
    "_valid_processor_keys",
    "auto_map",
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "feature_extractor_type",
    "image_processor_type",
    "input_data_format",
    "processor_class",
    "return_tensors",
];
/// Fields of a size.
const FIELDS: [&str; 6] =
    ["height", "width", "shortest_edge", "longest_edge", "max_height", "max_width"];

/// The configuration files of a folder.
#[derive(Debug)]
pub(crate) struct ProcessorFiles {
    /// Entries of the image processor.
    pub(crate) images: Vec<(String, Scalar)>,
    /// The file that they are from.
    pub(crate) images_path: PathBuf,
    pub(crate) whole: Vec<(String, Scalar)>,
    pub(crate) tokenizer: Vec<(String, Scalar)>,
}

impl ProcessorFiles {
    /// Reads the files that are there; one with an image processor has to be.
    pub(crate) fn read(folder: &Path) -> Result<Self, Finding> {
        let whole = object(&folder.join(WHOLE_FILE))?.unwrap_or_default();
        let tokenizer = object(&folder.join(TOKENIZER_FILE))?.unwrap_or_default();
        if let Some(Scalar::Map(entries)) = value(&whole, INNER) {
            let images = entries.clone();
            return Ok(Self { images, images_path: folder.join(WHOLE_FILE), whole, tokenizer });
        }
        let images_path = folder.join(IMAGE_FILE);
        let images = object(&images_path)?.ok_or_else(|| {
            let message = format!("there is no file `{}`", images_path.display());
            Finding::unplaced(message).help(format!(
                "give the folder of a checkpoint with `{IMAGE_FILE}`, or with `{INNER}` in `{WHOLE_FILE}`"
            ))
        })?;
        Ok(Self { images, images_path, whole, tokenizer })
    }

    /// Returns the class of the image processor, in the name without `Fast` and `Pil`.
    pub(crate) fn image_class(&self) -> Option<String> {
        let class =
            text(&self.images, "image_processor_type").map(str::to_owned).or_else(|| {
                let older = text(&self.images, "feature_extractor_type")?;
                Some(older.replace("FeatureExtractor", "ImageProcessor"))
            })?;
        let plain = class.strip_suffix("Fast").or_else(|| class.strip_suffix("Pil"));
        Some(plain.unwrap_or(&class).to_owned())
    }

    /// Returns the class of the whole processor, from the files that `AutoProcessor` looks in.
    pub(crate) fn whole_class(&self) -> Option<&str> {
        let files = [&self.whole, &self.images, &self.tokenizer];
        files.into_iter().find_map(|entries| text(entries, "processor_class"))
    }

    /// Returns the word of a token: an attribute of the processor or of the tokenizer.
    pub(crate) fn token(&self, name: &str) -> Option<&str> {
        let special = ["extra_special_tokens", "model_specific_special_tokens"];
        text(&self.whole, name).or_else(|| token_text(&self.tokenizer, name)).or_else(|| {
            special.into_iter().find_map(|key| match value(&self.tokenizer, key) {
                Some(Scalar::Map(entries)) => token_text(entries, name),
                _ => None,
            })
        })
    }

    /// Returns the keys of the image processor that the sheet does not know.
    pub(crate) fn unread(&self, sheet: &ProcessorSheet) -> Vec<String> {
        let keys = self.images.iter().map(|(key, _)| key);
        let unread = keys.filter(|key| {
            !NEUTRAL.contains(&key.as_str())
                && !sheet.settings.contains_key(*key)
                && !sheet.ignored.contains(*key)
        });
        unread.cloned().collect()
    }

    /// Returns the settings of the image processor: the file's values, and the class's for absent keys and nulls.
    pub(crate) fn settings(
        &self,
        sheet: &ProcessorSheet,
        class: &str,
    ) -> Result<IndexMap<String, Scalar>, Finding> {
        let mut settings = with_defaults(&self.images, &sheet.settings_of(class));
        let square = value(&self.images, "default_to_square");
        for (key, side) in &sheet.sizes {
            let side = match square {
                Some(Scalar::Bool(true)) if key == "size" => SizeSide::Square,
                Some(Scalar::Bool(false)) if key == "size" => SizeSide::Edge,
                _ => *side,
            };
            if let Some(value) = settings.get_mut(key)
                && *value != Scalar::Null
            {
                *value = size(value, side).ok_or_else(|| self.no_size(key, value))?;
            }
        }
        Ok(settings)
    }

    fn no_size(&self, key: &str, value: &Scalar) -> Finding {
        let place = self.images_path.display();
        let message = format!("`{key}` of `{place}` holds {}, expected a size", value.kind());
        Finding::unplaced(message).help(format!(
            "write a number, two numbers, or an object with some of {}",
            FIELDS.join(", ")
        ))
    }
}

/// Returns the values of known keys: those of a file, and defaults for absent keys and nulls.
pub(crate) fn with_defaults(
    entries: &[(String, Scalar)],
    defaults: &IndexMap<String, Scalar>,
) -> IndexMap<String, Scalar> {
    let mut values = defaults.clone();
    for (key, setting) in &mut values {
        if let Some(stated) = value(entries, key).filter(|stated| **stated != Scalar::Null) {
            *setting = stated.clone();
        }
    }
    values
}

/// Reads a size as an object with all fields, nulls where the file has none.
fn size(value: &Scalar, side: SizeSide) -> Option<Scalar> {
    let entries = match (value, side) {
        (Scalar::Int(_) | Scalar::Float(_), SizeSide::Square) => {
            vec![("height".to_owned(), value.clone()), ("width".to_owned(), value.clone())]
        }
        (Scalar::Int(_) | Scalar::Float(_), SizeSide::Edge) => {
            vec![("shortest_edge".to_owned(), value.clone())]
        }
        (Scalar::List(sides), _) if sides.len() == 2 => {
            vec![("height".to_owned(), sides[0].clone()), ("width".to_owned(), sides[1].clone())]
        }
        (Scalar::Map(entries), _) => entries.clone(),
        _ => return None,
    };
    let missing = FIELDS.into_iter().filter(|field| entries.iter().all(|(key, _)| key != field));
    let nulls: Vec<_> = missing.map(|field| (field.to_owned(), Scalar::Null)).collect();
    Some(Scalar::Map(entries.into_iter().chain(nulls).collect()))
}

/// Reads a file that holds an object; none if it is not there.
fn object(path: &Path) -> Result<Option<Vec<(String, Scalar)>>, Finding> {
    if !path.exists() {
        return Ok(None);
    }
    match Config::read(path)?.root() {
        Scalar::Map(entries) => Ok(Some(entries.clone())),
        _ => Ok(None),
    }
}

fn value<'e>(entries: &'e [(String, Scalar)], key: &str) -> Option<&'e Scalar> {
    entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

fn text<'e>(entries: &'e [(String, Scalar)], key: &str) -> Option<&'e str> {
    match value(entries, key) {
        Some(Scalar::Str(text)) => Some(text),
        _ => None,
    }
}

/// Returns a token's text, which may be written as an object with its properties.
fn token_text<'e>(entries: &'e [(String, Scalar)], key: &str) -> Option<&'e str> {
    match value(entries, key) {
        Some(Scalar::Map(properties)) => text(properties, "content"),
        _ => text(entries, key),
    }
}
