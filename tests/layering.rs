//! The crates depend on each other as ARCHITECTURE.md says, and on nothing behind its back.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::tool::root;

type Edges = BTreeMap<String, BTreeSet<String>>;

/// The table under "Crates": `| crate | may import | ... |`.
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

/// What the manifests say, dev-dependencies included: a test must not climb either.
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
