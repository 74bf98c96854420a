//! Checks that errors in public signatures of the libraries have types: neither text nor results in results.

use syn::visit::{self, Visit};
use syn::{GenericArgument, ImplItem, Item, PathArguments, Type, Visibility};

use super::model_names::{is_test_file, rust_files};
use crate::tool::{SOURCES, root};

/// Faults in the signatures of one file.
#[derive(Default)]
struct Search {
    place: String,
    found: Vec<String>,
}

/// Returns the name of a type without its path, and its type arguments.
fn parts(ty: &Type) -> Option<(String, Vec<&Type>)> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let arguments = match &last.arguments {
        PathArguments::AngleBracketed(list) => list.args.iter().collect(),
        _ => Vec::new(),
    };
    let types = arguments.into_iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    Some((last.ident.to_string(), types.collect()))
}

/// True if `ty` is text or a list of texts.
fn is_text(ty: &Type) -> bool {
    match ty {
        Type::Reference(of) => is_text(&of.elem),
        _ => parts(ty).is_some_and(|(name, of)| match name.as_str() {
            "String" | "str" => true,
            "Box" | "Cow" | "Vec" => of.iter().any(|of| is_text(of)),
            _ => false,
        }),
    }
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn is_result(ty: &Type) -> bool {
    parts(ty).is_some_and(|(name, _)| name == "Result")
}

impl Visit<'_> for Search {
    fn visit_type(&mut self, ty: &Type) {
        if let Some((name, of)) = parts(ty) {
            if name == "Result" && of.get(1).is_some_and(|error| is_text(error)) {
                self.found.push(format!("{}: an error is text", self.place));
            }
            if (name == "Result" || name == "Option") && of.iter().any(|of| is_result(of)) {
                self.found.push(format!("{}: a result is in a {name}", self.place));
            }
        }
        visit::visit_type(self, ty);
    }

    fn visit_field(&mut self, field: &syn::Field) {
        if is_public(&field.vis) {
            self.visit_type(&field.ty);
        }
    }
}

impl Search {
    fn at(&mut self, file: &str, name: &syn::Ident) {
        self.place = format!("{file}: {name}");
    }

    /// Searches one item if it is public. Aliases are searched always: they hide other types.
    fn item(&mut self, file: &str, item: &Item) {
        match item {
            Item::Fn(item) if is_public(&item.vis) => {
                self.at(file, &item.sig.ident);
                self.visit_signature(&item.sig);
            }
            Item::Type(item) => {
                self.at(file, &item.ident);
                self.visit_type(&item.ty);
            }
            Item::Struct(item) if is_public(&item.vis) => {
                self.at(file, &item.ident);
                self.visit_item_struct(item);
            }
            Item::Enum(item) if is_public(&item.vis) => {
                self.at(file, &item.ident);
                for field in item.variants.iter().flat_map(|variant| &variant.fields) {
                    self.visit_type(&field.ty);
                }
            }
            Item::Trait(item) if is_public(&item.vis) => {
                self.at(file, &item.ident);
                self.visit_item_trait(item);
            }
            Item::Impl(item) => {
                for of in &item.items {
                    match of {
                        ImplItem::Fn(of) if is_public(&of.vis) => {
                            self.at(file, &of.sig.ident);
                            self.visit_signature(&of.sig);
                        }
                        ImplItem::Type(of)
                            if ["Err", "Error"].iter().any(|name| of.ident == name)
                                && is_text(&of.ty) =>
                        {
                            self.found.push(format!("{file}: {}: an error is text", of.ident));
                        }
                        _ => {}
                    }
                }
            }
            Item::Mod(item) => {
                for item in item.content.iter().flat_map(|(_, items)| items) {
                    self.item(file, item);
                }
            }
            _ => {}
        }
    }
}

/// Returns the faults of a file's text.
fn faults(file: &str, text: &str) -> Vec<String> {
    let mut search = Search::default();
    for item in &syn::parse_file(text).unwrap().items {
        search.item(file, item);
    }
    search.found
}

#[test]
fn errors_of_public_signatures_have_types() {
    let mut files = Vec::new();
    for folder in SOURCES.into_iter().filter(|folder| *folder != "cli") {
        rust_files(&root().join(folder), &mut files);
    }
    files.retain(|path| !is_test_file(path.strip_prefix(root()).unwrap()));
    let messages: Vec<String> = files
        .iter()
        .flat_map(|path| {
            let short = path.strip_prefix(root()).unwrap().display().to_string();
            faults(&short, &fs_err::read_to_string(path).unwrap())
        })
        .collect();
    assert!(
        messages.is_empty(),
        "write an enum whose variants are the errors:\n{}",
        messages.join("\n")
    );
}

#[test]
fn the_search_looks_into_every_kind_of_signature() {
    for text in [
        "pub fn f(\n    x: u8,\n) -> Result<\n    u8,\n    String,\n> {}",
        "pub fn f() -> io::Result<Result<u8, E>> {}",
        "pub fn f(g: impl Fn(Result<u8, &str>) -> u8) {}",
        "impl X { pub fn f(&self) -> std::result::Result<(), Vec<String>> {} }",
        "impl FromStr for X { type Err = String; }",
        "pub trait T { fn f(&self) -> Option<Result<u8, E>>; }",
        "pub enum E { A(Result<u8, Cow<'static, str>>) }",
        "pub struct S { pub a: Vec<Result<u8, Box<str>>> }",
        "type R<T> = Result<T, String>;",
        "pub mod m { pub fn f() -> Result<(), String> {} }",
    ] {
        assert_eq!(faults("x.rs", text).len(), 1, "{text}");
    }
    for text in [
        "fn f() -> Result<u8, String> {}",
        "pub(crate) fn f() -> Result<u8, String> {}",
        "pub fn f() -> Result<String, E> {}",
        "pub struct S { a: Result<u8, String> }",
        "impl T for X { fn f() -> Result<u8, String> {} }",
    ] {
        assert!(faults("x.rs", text).is_empty(), "{text}");
    }
}
