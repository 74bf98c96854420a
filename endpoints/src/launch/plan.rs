//! Plans of launches: the sheet of an engine applied to a model.

use registry::scalar::Scalar;
use registry::sheet::Sheet;
use registry::sheet::apply::{LaunchPlan, LaunchRequest};
use registry::sheet::versions::Version;
use registry::suggest::closest;

use super::error::LaunchError;

/// Planned launch of an engine with a model.
#[derive(Debug)]
pub struct PlannedLaunch {
    /// Sheet of the engine.
    pub sheet: Sheet,
    /// Value of the engine's model flag.
    pub model: String,
    /// True if the value is a local path.
    pub local: bool,
    /// Architecture of the model.
    pub architecture: String,
    /// Values that were asked for.
    pub asked: LaunchRequest,
    /// Version of the engine.
    pub version: EngineVersion,
    /// Settings, memory plan and messages.
    pub outcome: LaunchPlan,
}

impl PlannedLaunch {
    /// Returns the warning that the sheet is not verified for this version.
    pub fn unverified(&self) -> String {
        let name = &self.version.name;
        let range = self.sheet.versions.as_ref();
        let range = range.map_or("no version".to_owned(), |range| format!("`{range}`"));
        format!(
            "unverified: the sheet of `{}` is true for {range}, and this is {name}",
            self.sheet.engine
        )
    }
}

/// Version of an engine.
#[derive(Debug, Clone)]
pub struct EngineVersion {
    /// Version as text.
    pub name: String,
    /// Version as numbers; none if it is unknown.
    pub version: Option<Version>,
    /// True if the sheet is verified for it.
    pub verified: bool,
}

impl EngineVersion {
    /// Reads a version of the engine of a sheet; by default the one that the sheet was read from.
    pub fn read(sheet: &Sheet, given: Option<&String>) -> Result<Self, LaunchError> {
        let Some(name) = given.or(sheet.checked.as_ref()) else {
            return Ok(Self { name: "unknown".to_owned(), version: None, verified: false });
        };
        let version = Version::parse(name).ok_or_else(|| LaunchError::Version(name.clone()))?;
        let verified = sheet.versions.as_ref().is_some_and(|range| range.contains(&version));
        Ok(Self { name: name.clone(), version: Some(version), verified })
    }
}

/// Reads settings of a sheet, each as `KEY=VALUE`.
pub fn read_settings(
    sheet: &Sheet,
    given: &[String],
) -> Result<Vec<(String, Scalar)>, LaunchError> {
    let mut settings: Vec<(String, Scalar)> = Vec::new();
    for text in given {
        let (key, value) = text.split_once('=').ok_or_else(|| LaunchError::Value(text.clone()))?;
        let Some(setting) = sheet.settings.get(key) else {
            return Err(unknown_setting(sheet, key));
        };
        if settings.iter().any(|(name, _)| name == key) {
            return Err(LaunchError::Repeated(key.to_owned()));
        }
        settings.push((key.to_owned(), setting.read(value)?));
    }
    Ok(settings)
}

/// Returns the error for a setting that a sheet does not have.
fn unknown_setting(sheet: &Sheet, key: &str) -> LaunchError {
    let names = sheet.settings.keys().map(String::as_str);
    let help = match closest(key, names.clone()) {
        Some(name) => format!("; did you mean `{name}`?"),
        None => format!("; it has {}", names.collect::<Vec<_>>().join(", ")),
    };
    LaunchError::Setting { engine: sheet.engine.clone(), key: key.to_owned(), help }
}

/// Parses a memory size as MiB. GPU vendors call 2^30 bytes a GB.
pub fn parse_mib(text: &str) -> Result<i64, LaunchError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_lowercase();
    let mib = match unit.as_str() {
        "gb" | "gib" | "g" => Some(1024.0),
        "mb" | "mib" | "m" => Some(1.0),
        _ => None,
    };
    let number: Option<f64> = digits.trim().parse().ok();
    let size = number.zip(mib).map(|(number, mib)| (number * mib).floor());
    let size = size.filter(|size| (1.0..=1e9).contains(size));
    size.map(|size| size as i64).ok_or_else(|| LaunchError::Size(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::parse_mib;

    #[test]
    fn sizes_are_read_as_mib() {
        for (text, expected) in [
            ("16GB", Some(16384)),
            ("24564MiB", Some(24564)),
            ("1.5g", Some(1536)),
            ("16", None),
            ("-1GB", None),
            ("nanGB", None),
            ("1e30GB", None),
        ] {
            assert_eq!(parse_mib(text).ok(), expected, "{text}");
        }
    }
}
