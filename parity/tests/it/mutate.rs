//! Checks that mistakes that change a value are caught in f32, at their place.

use std::path::Path;
use std::sync::Arc;

use onboard_parity::Dump;
use onboard_parity::mutate::{
    Fate, MistakeClass, MutantOutcome, MutateOptions, MutationReport, mutate,
};
use registry::config::Config;
use registry::dtype::Dtype;
use registry::library::Library;
use registry::ops::OpSet;

fn book(name: &str, options: &MutateOptions) -> MutationReport {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name);
    let text = fs_err::read_to_string(dir.join("config.json")).unwrap();
    let config = Config::parse("config.json", &text).unwrap();
    let library = Library::builtin();
    let spec = library.load(library.find(&config)[0], &[]).unwrap();
    let (model, _) = registry::resolve::resolve(&spec, &config, &OpSet::builtin()).unwrap();
    let source = engine::ModelSource { model: Arc::new(model), dir: &dir };
    let dump = Dump::open(&dir.join("reference")).unwrap();
    mutate(&engine::NativeEngine::new(), &source, &dump, options, &mut |_, _, _| {}).unwrap()
}

/// Asserts that nothing is missed, that most places are right, and that these classes have caught mutants.
fn assert_caught(name: &str, classes: &[MistakeClass]) {
    let options = MutateOptions { dtypes: vec![Dtype::F32], ..MutateOptions::default() };
    let book = book(name, &options);
    let missed: Vec<_> = book.outcomes.iter().filter(|o| o.fate == Fate::Missed).collect();
    assert!(missed.is_empty() && !book.misses(), "{name}: {missed:#?}");
    let (known, right) = book.places();
    let wrong: Vec<_> = book.outcomes.iter().filter(|o| o.right == Some(false)).collect();
    assert!(known > 20 && right * 20 >= known * 19, "{name}: {wrong:#?}");
    for class in classes {
        assert!(
            book.outcomes.iter().any(|o| o.class == *class && o.fate == Fate::Caught),
            "{name}: {}",
            class.name()
        );
    }
}

#[test]
fn mistakes_in_a_model_with_attention_are_caught() {
    let classes = [
        MistakeClass::Epsilon,
        MistakeClass::Number,
        MistakeClass::Window,
        MistakeClass::Swap,
        MistakeClass::Rope,
        MistakeClass::Value,
        MistakeClass::State,
    ];
    assert_caught("llama", &classes);
}

#[test]
fn mistakes_in_a_model_with_convolutions_are_caught() {
    assert_caught(
        "lfm2",
        &[
            MistakeClass::Epsilon,
            MistakeClass::Form,
            MistakeClass::Rope,
            MistakeClass::Value,
            MistakeClass::State,
            MistakeClass::Slot,
        ],
    );
}

#[test]
fn mistakes_in_a_model_with_a_recurrence_are_caught() {
    assert_caught(
        "mamba2",
        &[
            MistakeClass::Epsilon,
            MistakeClass::Form,
            MistakeClass::Value,
            MistakeClass::State,
            MistakeClass::Slot,
        ],
    );
}

#[test]
fn a_rounding_inside_of_a_layer_norm_is_caught() {
    let only = Some("layer_norm: cast".to_owned());
    let options = MutateOptions { dtypes: vec![Dtype::Bf16], only, ..MutateOptions::default() };
    for name in ["gpt2", "cohere"] {
        let book = book(name, &options);
        let caught = book.outcomes.iter().filter(|outcome| outcome.fate == Fate::Caught);
        assert!(!book.misses() && caught.count() > 0, "{name}: {:#?}", book.outcomes);
    }
}

#[test]
fn a_fault_in_an_expert_is_caught_in_a_model_with_experts_in_attention() {
    let only = Some("one expert".to_owned());
    let options = MutateOptions { dtypes: vec![Dtype::F32], only, ..MutateOptions::default() };
    let book = book("jetmoe", &options);
    assert!(book.outcomes.iter().any(|outcome| outcome.fate == Fate::Caught), "{book:#?}");
}

#[test]
fn faults_at_few_positions_are_caught_in_every_dtype() {
    let only = Some("place".to_owned());
    let options = MutateOptions { only, ..MutateOptions::default() };
    for name in ["llama", "lfm2", "gemma3_text", "deepseek_v3"] {
        let book = book(name, &options);
        let missed: Vec<_> = book.outcomes.iter().filter(|o| o.fate == Fate::Missed).collect();
        assert!(missed.is_empty(), "{name}: {missed:#?}");
        // No op is recorded at positions in the middle of the long prompt.
        let mut named = book
            .outcomes
            .iter()
            .filter(|o: &&MutantOutcome| !o.mutant.contains(" at positions "))
            .map(|o| o.right);
        assert!(named.all(|right| right != Some(false)), "{name}: {:#?}", book.outcomes);
        for dtype in Dtype::ALL {
            let caught =
                book.outcomes.iter().filter(|o| o.dtype == dtype && o.fate == Fate::Caught);
            assert!(caught.count() >= 4, "{name} {dtype}: {:#?}", book.outcomes);
        }
    }
}
