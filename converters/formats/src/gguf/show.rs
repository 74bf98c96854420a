//! Prints the contents of a GGUF file: keys, tensors, and totals by type.

use std::collections::BTreeMap;
use std::path::Path;

use registry::quantity;
use registry::table::TextTable;

use super::{Error, GgufFile, Metadata, MetadataArray, MetadataValue};
use crate::codec::BlockType;
use crate::escaped;

/// Maximum length of a text that is shown, and of an array.
const TEXT: usize = 60;
const ELEMENTS: usize = 4;

/// Requested sections.
#[derive(Debug, Clone, Copy)]
pub struct GgufSections {
    /// True for the keys.
    pub keys: bool,
    /// True for the tensors, and the totals of their types.
    pub tensors: bool,
}

/// Formats the file as text.
pub fn show_text(path: &Path, sections: GgufSections) -> Result<String, Error> {
    let file = GgufFile::open(path)?;
    let mut text = String::new();
    let GgufSections { keys, tensors } = sections;
    if keys && tensors {
        text.push_str(&head(path, &file)?);
        text.push_str("\n# keys\n\n");
    }
    if keys {
        text.push_str(&self::keys(file.metadata()));
    }
    if keys && tensors {
        text.push_str("\n# tensors\n\n");
    }
    if tensors {
        text.push_str(&self::tensors(&file));
        if keys {
            text.push_str("\n# types\n");
        }
        text.push('\n');
        text.push_str(&types(&file));
    }
    Ok(text)
}

/// Returns the head line: `tiny.gguf: tiny, GGUF version 3, 12 keys, 5 tensors in 2 files`.
fn head(path: &Path, file: &GgufFile) -> Result<String, Error> {
    let arch = file.metadata().str("general.architecture")?.unwrap_or("no architecture");
    let keys = file.metadata().len();
    let tensors = file.tensors().len();
    let files = match file.files().len() {
        1 => String::new(),
        count => format!(" in {count} files"),
    };
    let keys = quantity::plural(keys, "key");
    let tensors = quantity::plural(tensors, "tensor");
    let name = path.display();
    let version = file.version();
    Ok(format!("{name}: {}, GGUF version {version}, {keys}, {tensors}{files}\n", escaped(arch)))
}

fn keys(metadata: &Metadata) -> String {
    let mut table = TextTable::new(&[]);
    for (key, value) in metadata.iter() {
        let kind = match value {
            MetadataValue::Array(array) => format!("{}[{}]", array.kind(), array.len()),
            other => other.kind().to_string(),
        };
        table.row([escaped(key), kind, shown(value)]);
    }
    table.plain("")
}

/// Formats a value as in a spec, with long ones shortened.
fn shown(value: &MetadataValue) -> String {
    match value {
        MetadataValue::String(text) => format!("\"{}\"", cut(text)),
        MetadataValue::Array(array) => elements(array),
        MetadataValue::Bool(x) => x.to_string(),
        MetadataValue::F32(x) => format!("{x:?}"),
        MetadataValue::F64(x) => format!("{x:?}"),
        other => other.integer().map_or(String::new(), |x| x.to_string()),
    }
}

fn elements(array: &MetadataArray) -> String {
    let some = (0..ELEMENTS).filter_map(|n| array.get(n));
    let mut shown: Vec<String> = some.map(|value| shown(&value)).collect();
    if array.len() > ELEMENTS {
        shown.push("...".into());
    }
    format!("[{}]", shown.join(", "))
}

fn cut(text: &str) -> String {
    let long = text.chars().nth(TEXT).is_some();
    let some: String = text.chars().take(TEXT).collect();
    escaped(&some) + if long { "..." } else { "" }
}

fn tensors(file: &GgufFile) -> String {
    let many = file.files().len() > 1;
    let mut table = TextTable::new(&[3, 4]);
    table.row(["tensor", "type", "shape", "bytes", "at"].into_iter().chain(many.then_some("file")));
    for info in file.tensors() {
        let place = many.then(|| (info.file + 1).to_string());
        let cells = [
            escaped(&info.name),
            info.ty.to_string(),
            format!("{:?}", info.shape),
            info.bytes.to_string(),
            info.offset.to_string(),
        ];
        table.row(cells.into_iter().chain(place));
    }
    table.plain("")
}

/// Formats the totals of each type, the largest first, and the sum.
fn types(file: &GgufFile) -> String {
    let mut sums = BTreeMap::<BlockType, TypeTotals>::new();
    let mut all = TypeTotals::default();
    for info in file.tensors() {
        for sum in [sums.entry(info.ty).or_default(), &mut all] {
            sum.tensors += 1;
            // All tensors lie in a file, so their values can be counted.
            sum.numbers = sum.numbers.saturating_add(info.elements());
            sum.bytes = sum.bytes.saturating_add(info.bytes);
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(ty, sum)| (std::cmp::Reverse(sum.bytes), *ty));
    let mut table = TextTable::new(&[1, 2, 3, 4]);
    table.row(["type", "tensors", "numbers", "bytes", "bits per number"]);
    for (ty, sum) in sums {
        table.row(sum.row(ty.to_string()));
    }
    table.row(all.row("all".into()));
    table.plain("")
}

#[derive(Debug, Clone, Copy, Default)]
struct TypeTotals {
    tensors: usize,
    numbers: u64,
    bytes: u64,
}

impl TypeTotals {
    fn row(self, name: String) -> [String; 5] {
        let bits = match self.numbers {
            0 => "-".into(),
            count => format!("{:.2}", self.bytes as f64 * 8.0 / count as f64),
        };
        let numbers = quantity::count(self.numbers);
        [name, self.tensors.to_string(), numbers, quantity::bytes(self.bytes), bits]
    }
}
