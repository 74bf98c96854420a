//! The `quant:` sections of the built-in specs: what decides or ends a model is not quantized.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use onboard_spec::config::Config;
use onboard_spec::graph::{Graph, ValueId, WeightId};
use onboard_spec::library::Library;
use onboard_spec::model::Model;
use onboard_spec::ops::OpSet;
use onboard_spec::quant::unquantized_matrices;
use onboard_spec::resolve::resolve;

fn models() -> Vec<(PathBuf, Model)> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut folders: Vec<PathBuf> =
        fs_err::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let configs = folders.into_iter().map(|dir| dir.join("config.json"));
    let library = Library::builtin();
    configs
        .filter(|config| config.exists())
        .map(|path| {
            let config = Config::read(&path).unwrap();
            let names = library.find(&config);
            let spec = library.load(names.first().unwrap(), &[]).unwrap();
            (path, resolve(&spec, &config, &OpSet::builtin()).unwrap().0)
        })
        .collect()
}

/// The matrices that a value was last multiplied by.
fn behind(graph: &Graph, value: ValueId) -> BTreeSet<usize> {
    let (mut found, mut seen, mut next) = (BTreeSet::new(), BTreeSet::new(), vec![value]);
    while let Some(value) = next.pop() {
        if !seen.insert(value) {
            continue;
        }
        let Some(node) = graph.nodes.iter().find(|node| node.outputs.contains(&value)) else {
            continue;
        };
        match (node.op.as_str(), node.weights.get("weight")) {
            ("linear", Some(weight)) => {
                found.insert(weight.0);
            }
            _ if node.state.is_some() => {}
            _ => next.extend(&node.inputs),
        }
    }
    found
}

#[test]
fn routers_and_output_matrices_are_kept() {
    let (mut routers, mut wrong) = (0, BTreeSet::new());
    for (path, model) in models() {
        let graph = &model.graph;
        let looked_up: BTreeSet<usize> = graph
            .nodes
            .iter()
            .filter(|node| node.op == "embed")
            .flat_map(|node| node.weights.values().map(|id| id.0))
            .collect();
        let chosen = graph.nodes.iter().filter(|node| node.op == "choose");
        let deciding: BTreeSet<usize> =
            chosen.flat_map(|node| behind(graph, node.inputs[0])).collect();
        routers += deciding.len();
        let last = behind(graph, graph.output.unwrap());
        for n in deciding.union(&last).filter(|n| !looked_up.contains(n)) {
            let name = &graph.weights[*n].name;
            let stays = unquantized_matrices(graph).contains_key(&WeightId(*n));
            // The graph says so of itself; a spec's list may forget.
            if !stays {
                wrong.insert(format!("{}: `{name}` would be quantized", path.display()));
            }
        }
    }
    assert!(routers > 50, "{routers}");
    assert!(wrong.is_empty(), "{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
}
