//! Tests of dumps of some layers: the check runs those layers alone, and reads no others.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::tool::{
    Ran, copy_folder, fixture, json as parsed, onboard, parity, remove_checksums, run,
};

/// Layers of the dump in `fixtures/lfm2/layers`.
const CHOSEN: [usize; 2] = [1, 4];
const LAYERS: usize = 6;

fn stored() -> PathBuf {
    fixture("lfm2").join("layers")
}

/// Name of the shard of a layer, or of everything else.
fn shard(layer: Option<usize>) -> String {
    layer.map_or_else(|| "rest.safetensors".to_owned(), |n| format!("layer-{n}.safetensors"))
}

/// Writes the checkpoint of lfm2 with one shard for each layer and one for everything else.
fn sharded(to: &Path) {
    let source = fixture("lfm2");
    fs_err::create_dir_all(to).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs_err::copy(source.join(name), to.join(name)).unwrap();
    }
    let bytes = fs_err::read(source.join("model.safetensors")).unwrap();
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header = parsed(std::str::from_utf8(&bytes[8..8 + length]).unwrap());
    let data = &bytes[8 + length..];
    let layers = (0..LAYERS).map(Some).chain([None]);
    let mut map = Map::new();
    for layer in layers {
        let mut entries = Map::new();
        let mut packed = Vec::new();
        for (name, entry) in header.as_object().unwrap() {
            let number = name.strip_prefix("model.layers.").and_then(|path| path.split_once('.'));
            let number = number.map(|(number, _)| number.parse().unwrap());
            if name == "__metadata__" || number != layer {
                continue;
            }
            let [first, end] = [0, 1].map(|n: usize| {
                usize::try_from(entry["data_offsets"][n].as_u64().unwrap()).unwrap()
            });
            let begin = packed.len();
            packed.extend_from_slice(&data[first..end]);
            let mut entry = entry.clone();
            entry["data_offsets"] = json!([begin, packed.len()]);
            entries.insert(name.clone(), entry);
            map.insert(name.clone(), Value::String(shard(layer)));
        }
        let mut text = serde_json::to_vec(&entries).unwrap();
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut file = (text.len() as u64).to_le_bytes().to_vec();
        file.extend(text);
        file.extend(packed);
        fs_err::write(to.join(shard(layer)), file).unwrap();
    }
    let index = json!({"metadata": {}, "weight_map": map});
    fs_err::write(to.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

fn check(model: &Path, dump: &Path, more: &[&str]) -> Ran {
    run(parity().arg("check").arg(model).arg("--reference").arg(dump).args(more))
}

#[test]
fn layers_of_a_dump_are_proven_without_the_others() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("model");
    sharded(&model);
    let of_two = "AGREE in 2 runs of layers 1, 4 of 6 alone";
    let dump = stored();
    check(&model, &dump, &[]).code(0).prints(of_two).prints("only layers 1, 4 of 6 ran");
    check(&fixture("lfm2"), &dump, &[]).code(0).prints(of_two);
    check(&model, &dump, &["--dtype", "f32", "--set", "dims.eps=1e-3"]).code(1).prints("DIFFER");

    // Files of other layers are neither needed nor opened.
    for layer in (0..LAYERS).filter(|layer| !CHOSEN.contains(layer)) {
        let file = model.join(shard(Some(layer)));
        fs_err::remove_file(&file).unwrap();
        if layer == 0 {
            fs_err::write(file, "no safetensors").unwrap();
        }
    }
    check(&model, &dump, &[]).code(0).prints(of_two);

    let file = model.join(shard(Some(4)));
    let mut bytes = fs_err::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs_err::write(&file, &bytes).unwrap();
    check(&model, &dump, &[]).code(2).says("was made from another model");
    fs_err::remove_file(&file).unwrap();
    check(&model, &dump, &[]).code(2).says("layer-4.safetensors");
}

#[test]
fn a_dump_of_some_layers_proves_no_whole_model() {
    let alone = "is of layers 1, 4 of 6 alone";
    let model = fixture("lfm2");
    run(onboard().arg("add-model").arg(&model).arg("--reference").arg(stored()))
        .code(2)
        .says(alone);
    run(parity().arg("mutate").arg(&model).arg("--reference").arg(stored())).code(2).says(alone);
}

#[test]
fn a_choice_that_does_not_fit_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let dump = home.path().join("dump");
    copy_folder(&stored(), &dump);
    remove_checksums(&dump);
    let file = dump.join("manifest.json");
    let text = fs_err::read_to_string(&file).unwrap();
    let entry = r#""layers": {"chosen": [1, 4], "of": 6, "prefix": "model.layers"}"#;
    assert!(text.contains(entry), "{text}");
    for (other, says) in [
        (r#""layers": {"chosen": [1, 4], "of": 5, "prefix": "model.layers"}"#, "the model has 6"),
        (r#""layers": {"chosen": [1, 6], "of": 6, "prefix": "model.layers"}"#, "below their count"),
        (r#""layers": {"chosen": [], "of": 6, "prefix": "model.layers"}"#, "below their count"),
        (r#""layers": {"chosen": [1, 4], "of": 6, "prefix": ""}"#, "below their count"),
    ] {
        fs_err::write(&file, text.replace(entry, other)).unwrap();
        check(&fixture("lfm2"), &dump, &[]).code(2).says(says);
    }
}
