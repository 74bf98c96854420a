//! Checks that a type name has one meaning in the workspace, and that it is a noun of the field.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use super::model_names::{is_test_file, rust_files};
use crate::tool::{SOURCES, root};

/// Names that tell nothing without the file around them: participles, pronouns and empty nouns.
const VAGUE: [&str; 46] = [
    "About", "Asked", "Best", "Chosen", "Computed", "Data", "Declared", "Decoded", "Eight",
    "Ended", "Fed", "Found", "Given", "Handler", "Held", "Helper", "Info", "Item", "Kept", "Kind",
    "Known", "Made", "Manager", "Measured", "Named", "Needed", "Options", "Part", "Piece", "Place",
    "Planned", "Recorded", "Said", "Seen", "Side", "Stays", "Stored", "Such", "Thing", "Told",
    "Tried", "Trouble", "Util", "Wanted", "Which", "Whole",
];

/// Types that the items of one file declare, without those of test modules.
#[derive(Default)]
struct Declarations(Vec<String>);

pub(crate) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute: &syn::Attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "test")
    })
}

impl Visit<'_> for Declarations {
    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &syn::ItemStruct) {
        self.0.push(item.ident.to_string());
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &syn::ItemEnum) {
        self.0.push(item.ident.to_string());
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &syn::ItemUnion) {
        self.0.push(item.ident.to_string());
        visit::visit_item_union(self, item);
    }

    fn visit_item_trait(&mut self, item: &syn::ItemTrait) {
        self.0.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &syn::ItemType) {
        self.0.push(item.ident.to_string());
        visit::visit_item_type(self, item);
    }
}

fn declarations(text: &str) -> Vec<String> {
    let mut declarations = Declarations::default();
    declarations.visit_file(&syn::parse_file(text).unwrap());
    declarations.0
}

/// Returns the files that declare each type of the libraries and commands.
fn types() -> BTreeMap<String, Vec<String>> {
    let mut files = Vec::new();
    for folder in SOURCES {
        rust_files(&root().join(folder), &mut files);
    }
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in files {
        let short = path.strip_prefix(root()).unwrap();
        if !is_test_file(short) {
            for name in declarations(&fs_err::read_to_string(&path).unwrap()) {
                types.entry(name).or_default().push(short.display().to_string());
            }
        }
    }
    assert!(types.len() > 500, "the sources were found");
    types
}

#[test]
fn a_type_name_has_one_meaning() {
    let types = types();
    // Errors are told apart by their modules, as everywhere in Rust.
    let double = types.iter().filter(|(name, files)| *name != "Error" && files.len() > 1);
    let duplicates: Vec<String> =
        double.map(|(name, files)| format!("`{name}`: {}", files.join(", "))).collect();
    assert!(
        duplicates.is_empty(),
        "give each type a name that says what it is of; these exist more than once:\n{}",
        duplicates.join("\n")
    );
}

#[test]
fn type_names_are_nouns_of_the_field() {
    let types = types();
    let vague = types.iter().filter(|(name, _)| VAGUE.contains(&name.as_str()));
    let declared: Vec<String> =
        vague.map(|(name, files)| format!("`{name}`: {}", files.join(", "))).collect();
    assert!(
        declared.is_empty(),
        "name the subject, as in `TensorPart` or `HubOptions`, in place of:\n{}",
        declared.join("\n")
    );
}

#[test]
fn declarations_are_found_wherever_they_stand() {
    let text = "struct A; enum B {} trait C { type X; } type D = u8; union E { a: u8 }
        fn f<G>() { struct F; } impl C for A { type X = u8; } mod m { struct H; }
        #[cfg(test)] mod tests { struct I; } #[cfg(unix)] mod n { struct J; }";
    assert_eq!(declarations(text), ["A", "B", "C", "D", "E", "F", "H", "J"]);
}
