//! Config keys that engines read and transformers 5 does not write, from the sheets.

use anyhow::{Context as _, Result, ensure};
use formats::python_json::texts_as_words;
use models::local_model::LocalModel;
use registry::sheet::config_keys::{AddedKey, lacking};
use registry::sheet::facts::{FactInputs, facts};

use super::{json, sheets};
use crate::findings::reported_error;
use crate::term;

/// Lists the keys that the config of a checkpoint lacks.
fn missing_keys(target: &LocalModel) -> Result<Vec<AddedKey>> {
    let config = target.config.parsed();
    ensure!(
        !config.is_wrapped(),
        "--compat adds keys to configs of text models; `{}` holds another model beside its text model, \
         whose engines read the inner config",
        target.dir.display()
    );
    let about = FactInputs { dtype: Some(target.dtype()), tp: 1, ..FactInputs::default() };
    lacking(&sheets()?, &facts(&target.model, &about), config)
        .map_err(|findings| reported_error(&findings, "the keys cannot be worked out"))
}

/// Adds the missing keys to a config, and notes them. Existing keys are unchanged.
pub(crate) fn extend(target: &LocalModel, config: &mut serde_json::Value) -> Result<()> {
    let map = config.as_object_mut().context("the config is no object")?;
    let added = missing_keys(target)?;
    if added.is_empty() {
        term::note("the config lacks no key that an engine is known to read");
    }
    for key in added {
        if map.contains_key(&key.key) {
            continue;
        }
        let value = json::scalar(&key.value);
        term::note(&format!(
            "added `{}`: {value}, which {} reads ({})",
            key.key, key.engine, key.source.place
        ));
        map.insert(key.key, value);
    }
    Ok(())
}

/// Returns the text of a checkpoint's config with the added keys.
pub(crate) fn text(target: &LocalModel) -> Result<String> {
    let mut config = target.config.value()?;
    extend(target, &mut config)?;
    Ok(texts_as_words(format!("{config:#}\n")))
}
