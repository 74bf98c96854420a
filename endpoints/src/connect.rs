//! Identifies a server and reads its self-description.

use registry::listing;
use registry::sheet::SettingsReport;
use registry::sheet::versions::Version;
use serde_json::Value;

use crate::drivers::{DRIVERS, EndpointDriver, names, sheet};
use crate::error::shown;
use crate::http::ServerConnection;
use crate::json::{find, text};
use crate::{Endpoint, EndpointOptions, Error, LogprobSupport, ServerFacts};

/// Address of the list of served models, which all known servers have.
const MODELS: &str = "/v1/models";

/// Connects to the server at `url`: identifies it, and determines which log-probabilities it provides.
pub fn connect(url: &str, options: &EndpointOptions) -> Result<Box<dyn Endpoint>, Error> {
    let http = ServerConnection::new(url, options)?;
    let models = optional_json(&http, MODELS)?;
    let listed = models.clone().unwrap_or(Value::Null);
    let driver = match &options.driver {
        Some(name) => *DRIVERS
            .iter()
            .find(|driver| driver.name == *name)
            .ok_or_else(|| Error::Driver { found: shown(name), known: names() })?,
        None => recognise(&http, &models)?,
    };
    let facts = facts(&http, driver, &listed, options)?;
    (driver.open)(http, facts, options)
}

/// Reads the report at `path` of a server, with the limits of any other response.
pub fn report(url: &str, path: &str, options: &EndpointOptions) -> Result<Value, Error> {
    ServerConnection::new(url, options)?.get(path)?.report()
}

/// Reads JSON that a server may not have. A rejected key, a rate limit, or a server that still loads its model or cannot be
/// reached is an error, because it says nothing about the address.
fn optional_json(http: &ServerConnection, path: &str) -> Result<Result<Value, String>, Error> {
    match http.get(path) {
        Ok(answer) => Ok(answer.report().map_err(|error| error.to_string())),
        Err(error @ Error::Status { code, .. }) if !matches!(code, 401 | 403 | 429 | 503) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// Finds the first driver that recognizes a response of the server.
fn recognise(
    http: &ServerConnection,
    models: &Result<Value, String>,
) -> Result<&'static EndpointDriver, Error> {
    let mut tried = Vec::new();
    let listed = models.as_ref().unwrap_or(&Value::Null);
    for driver in DRIVERS {
        let path = sheet(driver).and_then(|sheet| Some(sheet.reports.first()?.path.clone()));
        let path = path.unwrap_or_else(|| driver.probe.to_owned());
        let answer = if path == MODELS { models.clone() } else { optional_json(http, &path)? };
        match answer {
            Ok(answer) if (driver.knows)(&answer, listed) => return Ok(driver),
            Ok(_) => tried.push(format!("`{path}` is not that of {}", driver.name)),
            Err(why) => tried.push(why),
        }
    }
    Err(Error::Unknown { url: http.base.clone(), tried: tried.join("; "), known: names() })
}

/// Collects the server's self-description.
fn facts(
    http: &ServerConnection,
    driver: &'static EndpointDriver,
    models: &Value,
    options: &EndpointOptions,
) -> Result<ServerFacts, Error> {
    let served = models
        .get("data")
        .map(|list: &Value| -> Vec<String> {
            let items = list.as_array().map_or(&[][..], Vec::as_slice);
            items.iter().filter_map(|item| Some(item.get("id")?.as_str()?.to_owned())).collect()
        })
        .unwrap_or_default();
    let model = match &options.model {
        Some(requested) if !served.is_empty() && !served.contains(requested) => {
            let names = served.iter().map(|name| format!("`{}`", shown(name)));
            let url = http.base.clone();
            return Err(Error::Model {
                url,
                wanted: requested.clone(),
                served: listing::items(names),
            });
        }
        Some(requested) => requested.clone(),
        None => served.first().cloned().unwrap_or_default(),
    };
    let place = served.iter().position(|name| *name == model).unwrap_or(0);
    let about = models.get("data").and_then(|data| data.get(place)).unwrap_or(&Value::Null);
    let mut facts = ServerFacts {
        url: http.base.clone(),
        driver: driver.name,
        version: None,
        model,
        models: served,
        root: about.get("root").and_then(text),
        vocab: count_at(about, "meta.n_vocab"),
        context: count_at(about, "max_model_len"),
        dtype: None,
        settings: Vec::new(),
        scores: LogprobSupport::None,
        generates: None,
        ignores_eos: false,
        cache_off: false,
        bound: None,
        products: Vec::new(),
        narrow_ops: Vec::new(),
        exact: None,
        hidden: Vec::new(),
        unverified: None,
    };
    for report in sheet(driver).map(|sheet| sheet.reports).unwrap_or_default() {
        let answer = if report.path == MODELS {
            Ok(models.clone())
        } else {
            optional_json(http, &report.path)?
        };
        match answer {
            Ok(answer) => read(&mut facts, &report, &answer),
            Err(_) if report.optional => {}
            Err(why) => facts.hidden.push(format!("settings in force: {why}")),
        }
    }
    facts.unverified = unverified(driver, facts.version.as_deref());
    Ok(facts)
}

/// Returns the count at a path of a server's report.
fn count_at(report: &Value, path: &str) -> Option<usize> {
    find(report, path).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
}

/// Returns the versions that the sheet of a driver's engine is verified for, unless the server's is one of
/// them.
fn unverified(driver: &EndpointDriver, version: Option<&str>) -> Option<String> {
    let range = sheet(driver)?.versions?;
    let known = Version::parse(version?).is_some_and(|version| range.contains(&version));
    (!known).then(|| range.to_string())
}

/// Reads the fields of one report.
fn read(facts: &mut ServerFacts, report: &SettingsReport, answer: &Value) {
    for (name, path) in &report.fields {
        let Some(value) = find(answer, path).and_then(text) else { continue };
        match name.as_str() {
            "version" => facts.version = Some(value),
            "model" => facts.root = facts.root.take().or(Some(value)),
            "context" => facts.context = value.parse().ok().or(facts.context),
            _ => {
                if name == "dtype" {
                    facts.dtype = short(&value).map(str::to_owned);
                }
                facts.settings.push((name.clone(), value));
            }
        }
    }
}

/// Returns the short name of a dtype in a server's spelling.
fn short(dtype: &str) -> Option<&'static str> {
    Some(match dtype.trim_start_matches("torch.") {
        "float32" | "float" | "f32" => "f32",
        "bfloat16" | "bf16" => "bf16",
        "float16" | "half" | "f16" => "f16",
        _ => return None,
    })
}
