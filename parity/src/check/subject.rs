//! Describes the compared model, engine and dump.

use std::collections::BTreeSet;

use checkpoints::Checkpoint;
use engine::{
    Chunk, Engine, ModelSource, NoProbe, OutputRows, Session as _, SessionFeatures, SessionOptions,
};
use registry::dtype::Dtype;
use registry::layer_choice::LayerChoice;

use super::{CheckOptions, Error};
use crate::dump::{Dump, sha256};
use crate::mask_support::masked;
use crate::order::ExecutionOrder;
use crate::prompt_session;
use crate::report::{FileHashes, ReportSubject};
use crate::run::feed_masked;
use engine::RowsSession;

/// Returns the names of a checkpoint's nonempty tensors, and hashes. Returns an error if the dump was not
/// made from the checkpoint.
pub(super) fn identify(
    source: &ModelSource<'_>,
    dump: &Dump,
    options: &CheckOptions,
) -> Result<(BTreeSet<String>, FileHashes), Error> {
    let mut hashes = FileHashes { dump: Some(dump.sha256()?), ..FileHashes::default() };
    // A model that is no folder of safetensors was converted; its tensors have other names.
    let checkpoint = match Checkpoint::open_part(source.dir, source.model.layers.as_ref()) {
        Ok(checkpoint) => checkpoint,
        Err(_) if !options.same_model => {
            hashes.weights = source.dir.is_file().then(|| sha256(source.dir)).transpose()?;
            return Ok((BTreeSet::new(), hashes));
        }
        Err(error) => return Err(error.into()),
    };
    let path = source.dir.join("config.json");
    let config = sha256(&path)?;
    options.begin(|| "hash of the weights".to_owned());
    let weights = checkpoint.fingerprint()?;
    if options.same_model {
        dump.verify_model((&path, &config), (&checkpoint, &weights))?;
    }
    (hashes.config, hashes.weights) = (Some(config), Some(weights));
    // An empty tensor, as of absent shared experts, has no effect.
    let tensors = checkpoint.tensors().iter().filter(|(_, info)| info.elements() > 0);
    Ok((tensors.map(|(name, _)| name.clone()).collect(), hashes))
}

/// Number of taps that a note names.
const NAMED: usize = 4;

/// Describes the values that the engine does not expose: `seen` is the exposed part of `all`.
pub(super) fn not_exposed(
    engine: &str,
    features: SessionFeatures,
    all: &ExecutionOrder,
    seen: &ExecutionOrder,
) -> Option<String> {
    if features == SessionFeatures::default() {
        return None;
    }
    let mut parts = Vec::new();
    if !features.steps {
        parts
            .push("cannot continue a prompt, so decode and schedules were not compared".to_owned());
    }
    match (seen.taps.len(), seen.states.len()) {
        (0, 0) => {
            parts.push(
                "shows neither taps nor states: only log-probabilities were compared".to_owned(),
            );
        }
        (taps, states) => {
            let hidden: Vec<&str> = all
                .taps
                .keys()
                .filter(|name| !seen.taps.contains_key(*name) && !name.contains(':'))
                .map(String::as_str)
                .collect();
            let some = hidden.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
            let more = if hidden.len() > NAMED { ", ..." } else { "" };
            let lacks =
                if hidden.is_empty() { String::new() } else { format!(" (not {some}{more})") };
            parts.push(format!(
                "shows {taps} of {} taps{lacks} and {states} of {} parts of states",
                all.taps.len(),
                all.states.len()
            ));
        }
    }
    if !seen.taps.is_empty() && !features.feeds {
        parts.push(
            "runs no op on given inputs, so whole runs were compared and no op by itself"
                .to_owned(),
        );
    }
    Some(format!("`{engine}` {}", parts.join("; ")))
}

/// Names the first value of the engine's own run that is not finite, if log-probabilities are not finite.
pub(super) fn not_finite(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    dtype: Dtype,
    options: &CheckOptions,
) -> Result<Option<String>, Error> {
    let options = SessionOptions { finite: true, ..options.engine(dtype) };
    let options = masked(&dump.manifest.prompts, options);
    let mut session = RowsSession::new(engine.open(source, &options)?);
    for prompt in &dump.manifest.prompts {
        prompt_session::begin(&mut session, dump, dtype, prompt)?;
        let slot = session.open_slot();
        let chunk = Chunk { slot, tokens: &prompt.tokens, rows: OutputRows::All };
        let mask = prompt.mask(prompt.tokens.len());
        let run = feed_masked(&mut session, chunk, mask, &mut NoProbe);
        session.release(slot)?;
        match run {
            Ok(_) => {}
            Err(error @ engine::Error::NotFinite { .. }) => {
                return Ok(Some(format!("{dtype}, prompt `{}`: {error}", prompt.name)));
            }
            Err(other) => return Err(other.into()),
        }
    }
    Ok(None)
}

pub(super) fn about(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    dump: &Dump,
    sha256: FileHashes,
) -> ReportSubject {
    let producer = producer(dump);
    ReportSubject {
        spec: source.model.name.clone(),
        layers: source.model.layers.as_ref().map(LayerChoice::listed),
        architecture: source.model.architecture.clone(),
        model: source.dir.display().to_string(),
        engine: engine.name().to_owned(),
        reference: dump.dir.display().to_string(),
        producer,
        sha256,
    }
}

/// Returns the producer of a dump, with versions.
pub(crate) fn producer(dump: &Dump) -> String {
    let m = &dump.manifest;
    let name = m.producer.get("name").and_then(|name| name.as_str());
    let mut producer = name.unwrap_or("an unnamed program").to_owned();
    for key in ["transformers", "torch"] {
        if let Some(version) = m.producer.get(key).and_then(|version| version.as_str()) {
            producer = if producer == key {
                format!("{key} {version}")
            } else {
                format!("{producer}, {key} {version}")
            };
        }
    }
    if let Some(code) = m.producer.get("code") {
        producer.push_str(&own_code(code));
    }
    let patches: Vec<String> =
        m.patches.iter().map(|patch| format!("{} {}", patch.name, patch.version)).collect();
    if !patches.is_empty() {
        producer = format!("{producer}, patched: {}", registry::listing::items(&patches));
    }
    producer
}

/// Names the files of a reference that are not transformers' own.
fn own_code(code: &serde_json::Value) -> String {
    const SHOWN: usize = 4;
    let files = code.get("files").and_then(|files| files.as_array()).map_or(&[][..], Vec::as_slice);
    let named = files.iter().take(SHOWN).map(|file| {
        let hash: String = text_of(file, "sha256").chars().take(12).collect();
        format!("`{}` ({hash})", text_of(file, "file"))
    });
    let named = named.collect::<Vec<_>>().join(", ");
    match files.len() {
        0 => ", with code of its own".to_owned(),
        count if count > SHOWN => {
            format!(", with code of {named} and {} more files", count - SHOWN)
        }
        _ => format!(", with code of {named}"),
    }
}

/// Returns the text under a key; `?` if there is none.
fn text_of<'a>(file: &'a serde_json::Value, key: &str) -> &'a str {
    file.get(key).and_then(|value| value.as_str()).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::own_code;

    #[test]
    fn code_of_the_reference_is_named_with_its_hash() {
        let code = serde_json::json!({"trust_remote_code": true, "files": [code_file("a.py"), code_file("b.py")]});
        assert_eq!(own_code(&code), ", with code of `a.py` (0123456789ab), `b.py` (0123456789ab)");
        let many = serde_json::json!({"files": vec![code_file("a.py"); 9]});
        assert!(own_code(&many).ends_with("and 5 more files"));
        for odd in [serde_json::json!(null), serde_json::json!({"files": 3}), serde_json::json!([])]
        {
            assert_eq!(own_code(&odd), ", with code of its own");
        }
    }

    fn code_file(name: &str) -> serde_json::Value {
        serde_json::json!({"file": name, "sha256": "0123456789abcdef"})
    }
}
