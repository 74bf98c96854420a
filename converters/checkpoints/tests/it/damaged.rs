//! Tests of quantized checkpoints whose tensors and config contradict each other: rejected with file,
//! tensor, found and expected form.

mod awq;
mod compressed;
mod floats;
mod gptq;
mod targets;

use std::collections::BTreeMap;

use formats::safetensors::{FileDtype, TensorSpec, Writer};
use onboard_checkpoints::checkpoint::Checkpoint;
use serde_json::{Value, json};

type Tensors = BTreeMap<&'static str, (FileDtype, Vec<usize>, Vec<u8>)>;

fn zeros(dtype: FileDtype, shape: &[usize]) -> (FileDtype, Vec<usize>, Vec<u8>) {
    (dtype, shape.to_vec(), vec![0; shape.iter().product::<usize>() * dtype.size()])
}

fn numbers<const N: usize>(
    dtype: FileDtype,
    numbers: [i64; N],
) -> (FileDtype, Vec<usize>, Vec<u8>) {
    let bytes = numbers.iter().flat_map(|n| n.to_le_bytes().into_iter().take(dtype.size()));
    (dtype, vec![N], bytes.collect())
}

/// Opens a checkpoint and begins to read each of its weights.
fn opened(section: &Value, tensors: &Tensors) -> Result<Vec<String>, String> {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({ "quantization_config": section }).to_string();
    fs_err::write(dir.path().join("config.json"), config).unwrap();
    let declared: Vec<TensorSpec> = tensors
        .iter()
        .map(|(name, (dtype, shape, _))| TensorSpec {
            name: (*name).to_owned(),
            dtype: *dtype,
            shape: shape.clone(),
        })
        .collect();
    let path = dir.path().join("model.safetensors");
    let mut writer = Writer::create(&path, &BTreeMap::new(), &declared).unwrap();
    for (name, (_, _, bytes)) in tensors {
        writer.write(name, bytes).unwrap();
    }
    writer.finish().unwrap();
    let checkpoint = Checkpoint::open(dir.path()).map_err(|error| error.to_string())?;
    for name in checkpoint.tensors().keys() {
        let flow = checkpoint.flow(name).map_err(|error| error.to_string())?;
        let mut values = vec![0.0; flow.len()];
        flow.read(0, &mut values);
    }
    Ok(checkpoint.tensors().keys().cloned().collect())
}

/// Checks that every change gives an error with these words.
fn refused(section: &Value, tensors: &Tensors, cases: &[DamageCase]) {
    assert_eq!(opened(section, tensors).unwrap(), ["m.weight"]);
    for (what, patch, change, words) in cases {
        let mut section = section.clone();
        let mut tensors = tensors.clone();
        for (key, value) in patch.iter().flat_map(|patch| patch.as_object().unwrap()) {
            *section.pointer_mut(key).unwrap() = value.clone();
        }
        change(&mut tensors);
        let error = opened(&section, &tensors).expect_err(what);
        for word in *words {
            assert!(error.contains(word), "{what}: no `{word}` in: {error}");
        }
    }
}

/// A change of the section: a value in place of that at a pointer.
fn patch(pointer: &str, value: Value) -> Value {
    Value::from_iter([(pointer, value)])
}

/// A damage: what it is, a change of the section, a change of the tensors, and words of the error.
type DamageCase = (&'static str, Option<Value>, Change, &'static [&'static str]);

type Change = fn(&mut Tensors);
const SAME: Change = |_| ();
