//! What is compared with what: model, engine, dump.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use converters::Checkpoint;
use engine::{Engine, Shows, Source};
use sha2::{Digest as _, Sha256};

use super::{CheckOptions, Error};
use crate::dump::Dump;
use crate::report::About;

/// Refuses a checkpoint that the dump was not made from; gives the names of its tensors.
pub(super) fn identify(
    source: &Source<'_>,
    dump: &Dump,
    options: &CheckOptions,
) -> Result<BTreeSet<String>, Error> {
    // A model that is no folder of safetensors was converted; its tensors have other names.
    let checkpoint = match Checkpoint::open(source.dir) {
        Ok(checkpoint) => checkpoint,
        Err(_) if !options.same_model => return Ok(BTreeSet::new()),
        Err(error) => return Err(error.into()),
    };
    if options.same_model {
        let config = registry::file::read(&source.dir.join("config.json"), registry::file::CONFIG)?;
        let digest = Sha256::digest(&config);
        let config: String = digest.iter().fold(String::new(), |mut hex, b| {
            let _ = write!(hex, "{b:02x}");
            hex
        });
        dump.verify_model(&config, &checkpoint.fingerprint()?)?;
    }
    Ok(checkpoint.tensors().keys().cloned().collect())
}

/// Says what could not be compared because the engine does not show it.
pub(super) fn unseen(engine: &str, shows: Shows) -> Option<String> {
    let what = match (shows.taps, shows.states) {
        (true, true) => return None,
        (false, true) => "no taps: log-probabilities and states were",
        (true, false) => "no states: log-probabilities and taps were",
        (false, false) => "neither taps nor states: only log-probabilities were",
    };
    Some(format!("`{engine}` shows {what} compared"))
}

pub(super) fn about(engine: &dyn Engine, source: &Source<'_>, dump: &Dump) -> About {
    let m = &dump.manifest;
    let word = |key: &str| m.producer.get(key).and_then(|v| v.as_str());
    let mut producer = word("name").unwrap_or("an unnamed program").to_owned();
    for key in ["transformers", "torch"] {
        if let Some(version) = word(key) {
            producer = if producer == key {
                format!("{key} {version}")
            } else {
                format!("{producer}, {key} {version}")
            };
        }
    }
    About {
        spec: source.model.name.clone(),
        architecture: source.model.architecture.clone(),
        model: source.dir.display().to_string(),
        engine: engine.name().to_owned(),
        reference: dump.dir.display().to_string(),
        producer,
    }
}
