//! An op that is added takes two files: a declaration and a kernel. All else follows from these.

mod declaration;
mod kernel;

use std::sync::Arc;

use onboard_engine::{Error, NativeEngine, SessionOptions};
use registry::config::Config;
use registry::library::Library;
use registry::model::Model;
use registry::ops::{OpSet, table};

use crate::build::feed;

/// The op's name, of which no file but the two may know.
fn name() -> String {
    declaration::rule().op().name().to_owned()
}

fn ops() -> OpSet {
    let mut ops = OpSet::builtin();
    assert!(ops.register(declaration::rule()).is_none(), "the program has this op already");
    ops
}

fn engine() -> NativeEngine {
    let mut engine = NativeEngine::new();
    kernel::kernels(&mut engine.kernels);
    engine
}

/// A model whose logits are the embedding, through `call`.
fn model(call: &str) -> Model {
    let spec = format!(
        "spec: 1\nname: made_up\nmatches: [MadeUp]\n\
         dims:\n  hidden: vocab_size\n  layers: = 1\n  vocab: vocab_size\n\
         layers:\n  prefix: layers.{{i}}\n  only: |\n    return {call}\n\
         model: |\n  return layers(embed(tokens, embed, vocab, hidden))\n"
    );
    let mut library = Library::default();
    let file = library.add_text("made_up.yaml", &spec);
    let spec = library.load(&file, &[]).unwrap();
    let config = r#"{"architectures": ["MadeUp"], "vocab_size": 4}"#;
    let config = Config::parse("config.json", config).unwrap();
    registry::resolve::resolve(&spec, &config, &ops()).unwrap().0
}

fn logits(engine: &NativeEngine, call: &str) -> Result<Vec<f32>, Error> {
    let mut tensors = onboard_engine::weights::WeightsInMemory::default();
    tensors.push(&[4, 4], &[1.0; 16]);
    let mut session =
        engine.open_with(Arc::new(model(call)), Box::new(tensors), &SessionOptions::default())?;
    let slot = session.open_slot();
    Ok(feed(&mut *session, slot, &[1]).data)
}

#[test]
fn a_spec_calls_it_and_the_engine_runs_it_with_the_declared_default() {
    let name = name();
    assert_eq!(logits(&engine(), &format!("{name}(x)")).unwrap(), [0.5; 4]);
    assert_eq!(logits(&engine(), &format!("{name}(x, by=0.25)")).unwrap(), [0.25; 4]);
    assert_eq!(logits(&engine(), &format!("{name}({name}(x))")).unwrap(), [0.25; 4]);
}

#[test]
fn documentation_schema_and_capabilities_have_it() {
    let name = name();
    let ops = ops();
    let row = format!("| `{name}(x, by=0.5)` | like x | x times `by` |\n");
    assert!(table::table(&ops).contains(&row));
    let schema = registry::schema::schema(&ops);
    let entry = &schema["$defs"]["ops"][&name];
    assert_eq!(entry["required"][0], "x");
    assert_eq!(entry["properties"]["by"]["default"], 0.5);
    assert!(engine().sheet().ops.contains(&name));
}

#[test]
fn an_op_without_a_kernel_is_refused_by_name() {
    let call = format!("{}(x)", name());
    let Err(error) = logits(&NativeEngine::new(), &call) else { panic!("it opened") };
    assert!(error.to_string().contains(&format!("engine `native` has no op `{}`", name())));
    // An op of this program is refused like one of another crate.
    let mut engine = engine();
    engine.kernels.remove("softmax");
    let Err(error) = logits(&engine, "softmax(x)") else { panic!("it opened") };
    assert!(error.to_string().contains("engine `native` has no op `softmax`"), "{error}");
}

#[test]
fn an_argument_that_its_kernel_does_not_take_is_refused_when_a_session_opens() {
    let mut model = model(&format!("{}(x)", name()));
    let node = model.graph.nodes.last_mut().unwrap();
    node.attrs.insert("by".to_owned(), registry::scalar::Scalar::Bool(true));
    let mut tensors = onboard_engine::weights::WeightsInMemory::default();
    tensors.push(&[4, 4], &[1.0; 16]);
    let opened = engine().open_with(Arc::new(model), Box::new(tensors), &SessionOptions::default());
    let Err(error) = opened else { panic!("it opened") };
    let want = "attribute `by` is true; expected a number";
    assert!(error.to_string().contains(want), "{error}");
}

#[test]
fn two_files_know_its_name() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    let quoted = format!("\"{}\"", name());
    let mut files = Vec::new();
    let mut open = vec![std::path::PathBuf::from(folder)];
    while let Some(folder) = open.pop() {
        for entry in fs_err::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if fs_err::read_to_string(&path).unwrap().contains(&quoted) {
                files.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
    }
    files.sort();
    assert_eq!(files, ["declaration.rs", "kernel.rs"]);
}
