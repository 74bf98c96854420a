//! Config keys that engines read and transformers 5 does not write, from the sheets.

use formats::python_json::texts_as_words;
use models::local_model::LocalModel;
use registry::sheet::config_keys::{AddedKey, lacking};
use registry::sheet::facts::{FactInputs, facts};
use registry::sheet::{self, Sheet};
use serde_json::Value;

use crate::error::{Context as _, Error, Result, ensure};
use crate::observer::ConversionObserver;

/// Lists the keys that the config of a checkpoint lacks.
fn missing_keys(target: &LocalModel) -> Result<Vec<AddedKey>> {
    let config = target.config.parsed();
    ensure!(
        !config.is_wrapped(),
        "the option `compat` adds keys to configs of text models; `{}` holds another model beside its text model, \
         whose engines read the inner config",
        target.dir.display()
    );
    let about = FactInputs { dtype: Some(target.dtype()), tp: 1, ..FactInputs::default() };
    lacking(&sheets()?, &facts(&target.model, &about), config).map_err(|findings| Error::Findings {
        message: "the keys cannot be worked out".to_owned(),
        findings,
    })
}

/// Adds the missing keys to a config, and notes them. Existing keys are unchanged.
pub(crate) fn extend(
    observer: &dyn ConversionObserver,
    target: &LocalModel,
    config: &mut Value,
) -> Result<()> {
    let map = config.as_object_mut().context("the config is no object")?;
    let added = missing_keys(target)?;
    if added.is_empty() {
        observer.note("the config lacks no key that an engine is known to read");
    }
    for key in added {
        if map.contains_key(&key.key) {
            continue;
        }
        let value = Value::from(&key.value);
        observer.note(&format!(
            "added `{}`: {value}, which {} reads ({})",
            key.key, key.engine, key.source.place
        ));
        map.insert(key.key, value);
    }
    Ok(())
}

/// Returns the text of a checkpoint's config with the added keys.
pub fn compat_config(target: &LocalModel, observer: &dyn ConversionObserver) -> Result<String> {
    let mut config = target.config.value()?;
    extend(observer, target, &mut config)?;
    Ok(texts_as_words(format!("{config:#}\n")))
}

/// Returns every built-in sheet.
fn sheets() -> Result<Vec<Sheet>> {
    let sheets = sheet::builtin().map(|(_, source)| Sheet::read(&source));
    sheets.collect::<Result<_, _>>().map_err(|findings| Error::Findings {
        message: "the sheet cannot be used".to_owned(),
        findings,
    })
}
