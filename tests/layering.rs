//! Checks that the crates depend on each other exactly as ARCHITECTURE.md documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

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
        let words = |cell: &str| -> BTreeSet<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let name = words(cells[0]).into_iter().next().unwrap();
        edges.insert(name, words(cells[1]));
    }
    edges
}

/// Returns the dependencies in the manifests, including dev-dependencies.
fn manifests() -> Edges {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = json["packages"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let ours: BTreeSet<String> = packages.iter().map(|package| text(&package["name"])).collect();
    let edges = packages.iter().map(|package| {
        let dependencies = package["dependencies"].as_array().unwrap();
        let named = dependencies.iter().map(|dependency| text(&dependency["name"]));
        (text(&package["name"]), named.filter(|name| ours.contains(name)).collect())
    });
    edges.collect()
}

#[test]
fn the_crate_table_is_what_the_manifests_say() {
    let (documented, manifests) = (documented(), manifests());
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

#[test]
fn no_crate_imports_a_crate_that_imports_it() {
    let edges = manifests();
    for name in edges.keys() {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![name]);
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

/// The program of a file: without comments, and without the tests at its end.
fn program(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).fold(
        String::new(),
        |mut program, line| {
            program.push_str(line);
            program.push('\n');
            program
        },
    )
}

/// Modules at the root of a crate that a program names.
fn named(program: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut found = BTreeSet::new();
    for after in program.split("crate::").skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            found.insert(word(after));
            continue;
        };
        let mut depth = 1;
        let mut start = true;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => start = true,
                c if start && !c.is_whitespace() => {
                    found.insert(word(&group[at..]));
                    start = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

/// Modules at the root of a crate by the other such modules that they import.
fn modules(folder: &Path) -> Edges {
    let mut files = Vec::new();
    rust_files(folder, &mut files);
    let root_of = |path: &Path| -> String {
        let first = path.strip_prefix(folder).unwrap().components().next().unwrap();
        first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
    };
    let roots: BTreeSet<String> = files.iter().map(|path| root_of(path)).collect();
    let mut edges = Edges::new();
    for path in files.iter().filter(|path| root_of(path) != "lib") {
        let names = named(&program(&fs_err::read_to_string(path).unwrap()));
        let own = root_of(path);
        let others = names.into_iter().filter(|name| roots.contains(name) && *name != own);
        edges.entry(own.clone()).or_default().extend(others);
    }
    edges
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

/// A way from a module back to itself, if there is one.
fn circle(edges: &Edges) -> Option<String> {
    for start in edges.keys() {
        let mut todo = vec![vec![start]];
        let mut seen = BTreeSet::new();
        while let Some(way) = todo.pop() {
            for next in edges.get(*way.last()?).into_iter().flatten() {
                let way: Vec<&String> = way.iter().copied().chain([next]).collect();
                if next == start {
                    return Some(
                        way.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" -> "),
                    );
                }
                if seen.insert(next) {
                    todo.push(way);
                }
            }
        }
    }
    None
}

#[test]
fn no_module_imports_itself_through_others() {
    let found: Vec<String> = SOURCES
        .into_iter()
        .filter_map(|folder| Some(format!("{folder}: {}", circle(&modules(&root().join(folder)))?)))
        .collect();
    assert!(
        found.is_empty(),
        "move what both need into a module of its own:\n{}",
        found.join("\n")
    );
    // The search finds circles.
    let edges = [("a", "b"), ("b", "c"), ("c", "b")];
    let edges = edges.map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()])));
    assert_eq!(circle(&Edges::from(edges)).as_deref(), Some("b -> c -> b"));
    let program = program("use crate::{a::{x, y}, b};\n// crate::c\ncrate::d::e();");
    assert_eq!(named(&program), ["a", "b", "d"].map(str::to_owned).into());
}
