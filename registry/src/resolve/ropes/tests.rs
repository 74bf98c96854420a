//! Tables against those that the reference library computes.

use std::borrow::Cow;

use crate::config::Config;
use crate::eval::{EvalResult, Fuel};
use crate::parse::parse_expr;
use crate::spec::DimSource;
use crate::syntax::Ident;
use crate::text::MappedText;

use super::*;

struct Names(Config, Fuel);

impl Env for Names {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        let value = self.0.get(&name.name).cloned();
        value.map(Cow::Owned).ok_or_else(|| Finding::error(&name.at, "unknown").into())
    }

    fn config(&self) -> &Config {
        &self.0
    }

    fn fuel(&self) -> &Fuel {
        &self.1
    }
}

fn key(name: &str) -> Ident {
    Ident { name: name.to_owned(), at: MappedText::whole("spec", name).span() }
}

fn expr(text: &str) -> crate::syntax::Expr {
    parse_expr(&MappedText::whole("spec", text)).unwrap()
}

/// Resolves a declaration as specs write it, over a config whose keys are also names.
fn run(config: &str) -> (Result<RopeTable, String>, Vec<String>) {
    run_with(None, None, config)
}

/// Resolves such a declaration with axes and an order of the frequencies.
fn run_with(
    axes: Option<&str>,
    order: Option<&str>,
    config: &str,
) -> (Result<RopeTable, String>, Vec<String>) {
    let decl = RopeDecl {
        name: key("main"),
        dim: expr("head_dim"),
        theta: vec![
            DimSource::Key(key("rope_parameters.rope_theta")),
            DimSource::Key(key("rope_theta")),
        ],
        parameters: vec![
            DimSource::Key(key("rope_parameters")),
            DimSource::Key(key("rope_scaling")),
        ],
        partial: None,
        context: Some(expr("context")),
        behind: None,
        axes: axes.map(expr),
        order: order.map(expr),
        long_by_scale: config.contains("long_mscale"),
        at: key("main").at,
    };
    let env = Names(Config::parse("config.json", config).unwrap(), Fuel::default());
    let mut warnings = Vec::new();
    let table = table(&decl, &env, &mut |fail| warnings.push(told(&fail)));
    (table.map_err(|fail| told(&fail)), warnings)
}

fn told(fail: &EvalError) -> String {
    match fail {
        EvalError::Finding(finding) => format!("{} ({})", finding.message, finding.label),
        EvalError::Reported => "reported".to_owned(),
    }
}

fn ulps(ours: &[f32], theirs: &serde_json::Value) -> (u32, usize) {
    let theirs: Vec<u32> =
        theirs.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect();
    assert_eq!(ours.len(), theirs.len());
    let apart = ours.iter().zip(&theirs).map(|(a, b)| a.to_bits().abs_diff(*b));
    (apart.clone().max().unwrap_or(0), apart.filter(|n| *n > 0).count())
}

#[test]
fn frequencies_are_the_references() {
    for line in include_str!("../../../tests/data/rope.jsonl").lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let name = &row["name"];
        let config = serde_json::json!({
            "head_dim": row["dim"], "rope_theta": row["theta"], "context": row["ctx"], "rope_scaling": row["params"],
        });
        let (table, warnings) = run(&config.to_string());
        assert!(warnings.is_empty(), "{name}: {warnings:?}");
        let table = table.unwrap();
        let context = row["ctx"].as_u64().unwrap() as usize;
        let (largest, how_many) = ulps(&table.frequencies(context.min(2)), &row["inv"]);
        // The reference's own power differs by a unit between its scalar and vector paths.
        assert!(
            largest <= 2 && how_many * 10 <= table.inv_freq.len(),
            "{name}: {how_many} differ by up to {largest}"
        );
        let factor = Config::parse("row", line).unwrap().get("af").and_then(Scalar::as_f64);
        assert_eq!(Some(table.attention_factor), factor, "{name}");
        if let Some(length) = row["seq"].as_u64() {
            let (largest, _) = ulps(&table.frequencies(length as usize), &row["long"]);
            assert!(largest <= 2, "{name} at {length}: {largest}");
        }
    }
}

#[test]
fn each_frequency_has_an_axis() {
    let config = r#"{"head_dim": 8, "context": 32, "rope_theta": 100.0}"#;
    let axes = |text: &str| run_with(Some(text), None, config).0.map(|table| table.axes);
    assert_eq!(axes("[i % 3 for i in range(head_dim // 2)]"), Ok(vec![0, 1, 2, 0]));
    assert_eq!(run(config).0.unwrap().axis_count(), 1);
    let table = run_with(Some("[0 if i < 3 else 2 for i in range(4)]"), None, config).0.unwrap();
    assert_eq!(table.axis_count(), 3);
    for wrong in ["range(3)", "[8 - i for i in range(4)]", "[0.5 for i in range(4)]"] {
        let told = axes(wrong).unwrap_err();
        assert!(told.contains("the axes of the table `main` do not fit its frequencies"), "{told}");
        assert!(told.contains("expected 4 numbers from 0 to 7, one for each frequency"), "{told}");
    }
    assert!(axes("3").unwrap_err().contains("this is no list of axes"));
}

#[test]
fn both_spellings_are_read() {
    let old = run(
        r#"{"head_dim": 8, "context": 32, "rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 2.0}}"#,
    );
    let new = run(
        r#"{"head_dim": 8, "context": 32, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}}"#,
    );
    assert_eq!(old.0, new.0);
    assert_eq!(old.0.unwrap().kind, "linear");
    let bare = run(
        r#"{"head_dim": 8, "context": 32, "rope_theta": 100.0, "rope_scaling": null, "partial_rotary_factor": 0.5}"#,
    );
    assert_eq!(bare.0.unwrap().dim, 8, "the default table is the class's own");
    let linear = run(
        r#"{"head_dim": 8, "context": 32, "rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 2.0}, "partial_rotary_factor": 0.5}"#,
    );
    assert_eq!(linear.0.unwrap().dim, 4);
    let su = r#"{"head_dim": 4, "context": 64, "rope_theta": 100.0, "original_max_position_embeddings": 16,
        "rope_scaling": {"type": "su", "short_factor": [1, 1], "long_factor": [2, 2]}}"#;
    let su = run(su).0.unwrap();
    assert_eq!(su.kind, "longrope");
    assert_eq!(su.long.unwrap().original_context, 16);
}

#[test]
fn faults_are_named() {
    for (scaling, expected) in [
        (
            r#"{"type": "yarm", "factor": 2.0}"#,
            "`rope_scaling.type` is the unknown word `yarm` (expected `default`, `linear`, `dynamic`, `yarn`, `longrope`, `llama3` or `proportional`)",
        ),
        (r#"{"type": "linear"}"#, "`config.json`: `rope_scaling.factor` is missing ()"),
        (
            r#"{"type": "linear", "factor": "2"}"#,
            "`config.json`: `rope_scaling.factor` is not a number above 0 (expected a number above 0, found the text '2')",
        ),
        (
            r#"{"type": "longrope", "short_factor": [1], "long_factor": [1, 1]}"#,
            "`config.json`: `rope_scaling.short_factor` has 1 items (expected one for each of 2 frequencies)",
        ),
        (
            r#"{"full_attention": {"rope_type": "default"}}"#,
            "`config.json`: `rope_scaling` holds a table per layer type (expected one table, found `full_attention` inside)",
        ),
        (
            "7",
            "`config.json`: the key `rope_scaling` is not an object or null (expected an object or null, found 7)",
        ),
    ] {
        let config = format!(
            r#"{{"head_dim": 4, "context": 64, "rope_theta": 1e4, "rope_scaling": {scaling}}}"#
        );
        assert_eq!(run(&config).0.unwrap_err(), expected);
    }
    let odd = r#"{"head_dim": 6, "context": 64, "rope_theta": 1e4, "rope_scaling": {"type": "KIND", "factor": 2.0}, "partial_rotary_factor": 0.5}"#;
    let yarn = odd.replace("KIND", "yarn");
    assert!(run(&yarn).0.unwrap_err().contains("would rotate 3 numbers"));
    // As `arange(0, 3, 2) / 3` of the reference gives two frequencies, of which each turns two numbers.
    let odd = run(&odd.replace("KIND", "linear")).0.unwrap();
    assert_eq!((odd.dim, odd.inv_freq.len(), odd.inv_freq[0]), (4, 2, 0.5));
    let huge = r#"{"head_dim": 99999999999, "context": 64, "rope_theta": 1e4}"#;
    assert!(run(huge).0.unwrap_err().contains("out of range"));
    let (_, warnings) = run(
        r#"{"head_dim": 4, "context": 64, "rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "alpha": 3}}"#,
    );
    assert_eq!(warnings.len(), 1);
}

#[test]
fn frequencies_stand_in_the_listed_order() {
    let config = r#"{"head_dim": 8, "context": 64, "rope_theta": 1e4}"#;
    let ordered = |text: &str| run_with(None, Some(text), config).0;
    let plain = run(config).0.unwrap().inv_freq;
    let table = ordered("[i % 2 for i in range(4)]").unwrap();
    assert_eq!((table.dim, table.inv_freq), (8, vec![plain[0], plain[1], plain[0], plain[1]]));
    assert_eq!(ordered("[3]").unwrap().dim, 2);
    for wrong in ["[4]", "range(0)", "3", "[0.5]"] {
        let told = ordered(wrong).unwrap_err();
        assert!(told.contains("this is no order of the frequencies of the table `main`"), "{told}");
    }
    let told = ordered("[0 for i in range(8)]").unwrap_err();
    assert!(told.contains("would rotate 16 numbers"), "{told}");
}
