//! Checks that the crates depend on each other exactly as ARCHITECTURE.md documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use serde_json::Value;

use crate::tool::{SOURCES, root};

type Edges = BTreeMap<String, BTreeSet<String>>;

/// Parses the table under "Crates": `| crate | may import | ... |`.
fn documented() -> Edges {
    let text = fs_err::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section =
        text.split("\n## Crates\n").nth(1).expect("ARCHITECTURE.md has a section `Crates`");
    let section = section.split("\n## ").next().unwrap();
    let mut edges = Edges::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let name = quoted_words(cells[0]).into_iter().next().unwrap();
        edges.insert(name, quoted_words(cells[1]));
    }
    edges
}

/// Returns the words of a table cell that are in backticks.
fn quoted_words(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the name of a package or a dependency.
fn entry_name(entry: &Value) -> String {
    entry["name"].as_str().unwrap().to_owned()
}

/// Returns the packages of the workspace, as cargo describes them.
fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let mut json: Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let Value::Array(packages) = json["packages"].take() else { panic!("{json}") };
    packages
}

/// Returns the dependencies in the manifests, including dev-dependencies.
fn manifests() -> Edges {
    let packages = packages();
    let ours: BTreeSet<String> = packages.iter().map(entry_name).collect();
    let edges = packages.iter().map(|package| {
        let dependencies = package["dependencies"].as_array().unwrap();
        let named = dependencies.iter().map(entry_name);
        (entry_name(package), named.filter(|name| ours.contains(name)).collect())
    });
    edges.collect()
}

#[test]
fn the_crate_table_is_what_the_manifests_say() {
    let documented = documented();
    let manifests = manifests();
    assert_eq!(
        documented.keys().collect::<Vec<_>>(),
        manifests.keys().collect::<Vec<_>>(),
        "every crate stands in the table of ARCHITECTURE.md, and no other"
    );
    for (name, allowed) in &documented {
        let used = &manifests[name];
        let extra: Vec<_> = used.difference(allowed).collect();
        assert!(
            extra.is_empty(),
            "`{name}` imports {extra:?}, which ARCHITECTURE.md does not allow"
        );
    }
}

/// Returns the text of all Rust files in a folder, and of those that they include by a path.
fn rust_text(folder: &Path) -> String {
    let Ok(entries) = fs_err::read_dir(folder) else { return String::new() };
    let mut all = String::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|extension| extension != "rs") {
            all += &rust_text(&path);
            continue;
        }
        let text = fs_err::read_to_string(path).unwrap();
        for included in text.split("#[path = \"").skip(1).filter_map(|line| line.split('"').next())
        {
            all += &fs_err::read_to_string(folder.join(included)).unwrap();
        }
        all += &text;
    }
    all
}

#[test]
fn every_dependency_is_called() {
    for package in packages() {
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let rooms = ["cli", "src", "tests", "benches", "examples"].map(|room| folder.join(room));
        let text: String = rooms.iter().map(|room| rust_text(room)).collect();
        for dependency in package["dependencies"].as_array().unwrap() {
            let name = dependency["rename"].as_str().or(dependency["name"].as_str()).unwrap();
            let path = name.replace('-', "_");
            let calls = [format!("{path}::"), format!("use {path};"), format!("{path} as ")];
            assert!(
                calls.iter().any(|call| text.contains(call)),
                "{} depends on `{name}` and never calls it",
                package["name"]
            );
        }
    }
}

#[test]
fn no_crate_imports_a_crate_that_imports_it() {
    let edges = manifests();
    for name in edges.keys() {
        let mut seen = BTreeSet::new();
        let mut todo = vec![name];
        while let Some(next) = todo.pop() {
            for below in &edges[next] {
                assert_ne!(below, name, "`{name}` imports itself through `{next}`");
                if seen.insert(below) {
                    todo.push(below);
                }
            }
        }
    }
}

/// A path from the crate's root, and the name that the importing module has for it.
type Import = (Vec<String>, String);

/// True for the tokens `[cfg(test)]` of an attribute.
fn is_cfg_test(token: Option<&TokenTree>) -> bool {
    token.is_some_and(|token| token.to_string().replace(' ', "") == "[cfg(test)]")
}

/// True for the last token of an item.
fn ends_item(token: &TokenTree) -> bool {
    match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    }
}

/// Paths in the code of a module that start with `crate`, `self` or `super`, from the crate's root.
///
/// Test modules are left out; the branches of `use a::{b, c}` are paths of their own.
fn paths(stream: TokenStream, module: &[String], imports: &mut Vec<Import>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Punct(punct)
                if punct.as_char() == '#' && is_cfg_test(tokens.get(at + 1)) =>
            {
                at += tokens[at..].iter().position(ends_item).unwrap_or(tokens.len());
            }
            TokenTree::Ident(word) if word == "mod" && at + 2 < tokens.len() => {
                if let TokenTree::Group(body) = &tokens[at + 2] {
                    let inner = [module, &[tokens[at + 1].to_string()]].concat();
                    paths(body.stream(), &inner, imports);
                    at += 2;
                }
            }
            TokenTree::Ident(word) if word == "use" => {
                // A path without a prefix begins in the module, or in another crate.
                let tail = &tokens[at + 1..];
                at += 1 + path(tail, module, module.to_vec(), imports);
            }
            TokenTree::Ident(word) if ["crate", "self", "super"].contains(&&*word.to_string()) => {
                at += path(&tokens[at..], module, Vec::new(), imports);
            }
            TokenTree::Group(group) => paths(group.stream(), module, imports),
            _ => {}
        }
        at += 1;
    }
}

/// True if `::` begins at a token.
fn has_colons(tokens: &[TokenTree], at: usize) -> bool {
    [at, at + 1].iter().all(|&at| tokens.get(at).is_some_and(|token| token.to_string() == ":"))
}

/// Follows one path from its first token on, and returns the number of tokens after the first.
fn path(
    tokens: &[TokenTree],
    module: &[String],
    mut from: Vec<String>,
    imports: &mut Vec<Import>,
) -> usize {
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) => match word.to_string().as_str() {
                "crate" => from.clear(),
                "self" if at == 0 && has_colons(tokens, 1) => from = module.to_vec(),
                "super" if at == 0 && has_colons(tokens, 1) => {
                    from = module[..module.len().saturating_sub(1)].to_vec();
                }
                "super" => drop(from.pop()),
                "self" => {}
                name => from.push(name.to_owned()),
            },
            Some(TokenTree::Group(group)) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for branch in inner.split(|token| token.to_string() == ",") {
                    path(branch, module, from.clone(), imports);
                }
                return at;
            }
            _ => {}
        }
        if !has_colons(tokens, at + 1) {
            // `self` alone is a value, and `super` alone a visibility.
            if at > 0 || !["self", "super", "crate"].contains(&&*text(tokens.first())) {
                let renamed = (text(tokens.get(at + 1)) == "as").then(|| text(tokens.get(at + 2)));
                let name = renamed.or_else(|| from.last().cloned()).unwrap_or_default();
                imports.push((from, name));
            }
            return at;
        }
        at += 3;
    }
}

fn text(token: Option<&TokenTree>) -> String {
    token.map(ToString::to_string).unwrap_or_default()
}

/// Modules of a crate by the modules beside them that they import, in every folder of modules.
///
/// A module and the modules below it are one room: they may use each other.
fn modules(files: &[(Vec<String>, String)]) -> Edges {
    let all: BTreeSet<&[String]> = files.iter().map(|(module, _)| module.as_slice()).collect();
    let parsed: Vec<(&[String], Vec<Import>)> = files
        .iter()
        .map(|(module, text)| {
            let mut imports = Vec::new();
            paths(text.parse().expect("Rust"), module, &mut imports);
            (module.as_slice(), imports)
        })
        .collect();
    // Names that a module takes from a module below it: `crate::a::B` may be `crate::a::c::B`.
    let mut inner: BTreeMap<Vec<String>, &[String]> = BTreeMap::new();
    for (module, imports) in &parsed {
        for (path, name) in imports.iter().filter(|(path, _)| path.len() > module.len() + 1) {
            if path.starts_with(module) && all.contains(&path[..=module.len()]) {
                inner.insert([module, &[name.clone()][..]].concat(), path);
            }
        }
    }
    let mut edges = Edges::new();
    for (module, imports) in &parsed {
        for mut path in imports.iter().map(|(path, _)| path.as_slice()) {
            for _ in 0..4 {
                path = (1..=path.len()).find_map(|len| inner.get(&path[..len])).unwrap_or(&path);
            }
            let shared = module.iter().zip(path).take_while(|(a, b)| a == b).count();
            if module.len() > shared && path.len() > shared && all.contains(&path[..=shared]) {
                let importer = &module[..=shared];
                let imported = &path[..=shared];
                edges.entry(importer.join("::")).or_default().insert(imported.join("::"));
            }
        }
    }
    edges
}

/// Module paths of a crate with the text of their files.
fn sources(folder: &Path) -> Vec<(Vec<String>, String)> {
    let mut files = Vec::new();
    rust_files(folder, &mut files);
    files
        .iter()
        .map(|path: &PathBuf| {
            let names = path.strip_prefix(folder).unwrap().with_extension("");
            let names = names.iter().map(|name| name.to_string_lossy().into_owned());
            let module: Vec<String> = names.filter(|name| name != "lib").collect();
            (module, fs_err::read_to_string(path).unwrap())
        })
        .collect()
}

/// Rust files below a folder, those of tests aside.
fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
}

/// Ways from a module back to itself, the modules of each only once.
fn circles(edges: &Edges) -> Vec<String> {
    let mut circles = Vec::new();
    let mut reported = BTreeSet::new();
    for start in edges.keys().filter(|start| edges[*start].iter().any(|next| next != *start)) {
        let mut todo = vec![vec![start]];
        let mut seen = BTreeSet::new();
        while let Some(way) = todo.pop() {
            for next in edges.get(*way.last().expect("not empty")).into_iter().flatten() {
                let way: Vec<&String> = way.iter().copied().chain([next]).collect();
                if next == start && !way.iter().any(|module| reported.contains(module)) {
                    let names: Vec<&str> = way.iter().map(|name| name.as_str()).collect();
                    circles.push(names.join(" -> "));
                    reported.extend(way);
                } else if seen.insert(next) {
                    todo.push(way);
                }
            }
        }
    }
    circles
}

#[test]
fn no_module_imports_itself_through_others() {
    let reports: Vec<String> = SOURCES
        .into_iter()
        .flat_map(|folder| {
            let circles = circles(&modules(&sources(&root().join(folder))));
            circles.into_iter().map(move |circle| format!("{folder}: {circle}"))
        })
        .collect();
    assert!(
        reports.is_empty(),
        "move what both need into a module of its own:\n{}",
        reports.join("\n")
    );
}

/// Returns the circles of a crate with these modules and their code.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let files = files.iter().map(|(module, text)| {
        let names = module.split("::").filter(|name| !name.is_empty());
        (names.map(str::to_owned).collect(), (*text).to_owned())
    });
    circles(&modules(&files.collect::<Vec<_>>()))
}

#[test]
fn circles_are_found_however_they_are_written() {
    let circle = ["a -> b -> a"];
    let files = [("a", "use crate::b::B;"), ("b", "fn f() { crate::a::g(); }")];
    assert_eq!(circles_of(&files), circle);
    assert_eq!(circles_of(&[("a", "use crate::{c, b::{B}};"), ("b", "use super::a::A;")]), circle);
    let nested =
        [("a", "mod d;"), ("a::d", "use super::super::b::B;"), ("b", "use super::{a::A};")];
    assert_eq!(circles_of(&nested), circle);
    // Through a name that the root takes from a module.
    let files =
        [("", "pub use b::B; mod a; mod b;"), ("a", "use super::B;"), ("b", "x!(super::a::A);")];
    assert_eq!(circles_of(&files), circle);
    let renamed =
        [("m", "pub use b::f as g;"), ("m::a", "use super::g;"), ("m::b", "use super::a;")];
    assert_eq!(circles_of(&renamed), ["m::a -> m::b -> m::a"]);
    // Below a module, too.
    let files = [("m::a", "use super::b::B;"), ("m::b", "use crate::m::a::A;"), ("m", "")];
    assert_eq!(circles_of(&files), ["m::a -> m::b -> m::a"]);
    // Comments, tests, and parents with their own modules are none.
    let files = [
        ("a", "use crate::b::B;"),
        ("b", "// crate::a\n#[cfg(test)]\nmod tests { use crate::a; }"),
    ];
    assert!(circles_of(&files).is_empty());
    assert!(circles_of(&[("a", "mod b; use b::B;"), ("a::b", "use super::A;")]).is_empty());
}
