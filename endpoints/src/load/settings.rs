//! Settings of load tests as text: lengths, rates, objectives, and fields that are added to requests.

use serde_json::{Map, Value};

use super::client::MOST_CONNECTIONS;
use super::lengths::LengthDistribution;
use super::summary::{ServiceObjective, SloMetric};

/// Text that is no setting: the text, and the form that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LoadSettingError(pub String);

/// Most tokens of a prompt or an answer.
const LONGEST: usize = 1 << 24;
/// Most requests of a run.
const MOST_REQUESTS: usize = 1_000_000;

fn within(text: &str, least: usize, limit: usize) -> Result<usize, LoadSettingError> {
    let number = text.trim().parse().ok().filter(|n| (least..=limit).contains(n));
    number.ok_or_else(|| {
        LoadSettingError(format!("`{text}` is not an integer from {least} to {limit}"))
    })
}

/// Parses a number of requests.
pub fn parse_request_count(text: &str) -> Result<usize, LoadSettingError> {
    within(text, 1, MOST_REQUESTS)
}

/// Parses a number of requests in flight.
pub fn parse_connections(text: &str) -> Result<usize, LoadSettingError> {
    within(text, 1, MOST_CONNECTIONS)
}

/// Parses a number of requests per second, or `inf`.
pub fn parse_rate(text: &str) -> Result<f64, LoadSettingError> {
    let rate = text.parse::<f64>().ok().filter(|rate| *rate >= 1e-4);
    rate.ok_or_else(|| {
        LoadSettingError(format!("`{text}` is no rate; expected requests per second, or inf"))
    })
}

/// Parses the half width of a range, relative to its middle.
pub fn parse_ratio(text: &str) -> Result<f64, LoadSettingError> {
    let ratio = text.parse::<f64>().ok().filter(|ratio| (0.0..1.0).contains(ratio));
    ratio.ok_or_else(|| {
        LoadSettingError(format!("`{text}` is no ratio; expected a number from 0 to below 1"))
    })
}

/// Parses the rank of a percentile.
pub fn parse_percentile(text: &str) -> Result<f64, LoadSettingError> {
    let rank = text.trim().parse::<f64>().ok().filter(|rank| (0.0..=100.0).contains(rank));
    rank.ok_or_else(|| {
        LoadSettingError(format!("`{text}` is no percentile; expected a number from 0 to 100"))
    })
}

/// Parses `128`, `64..256` or `normal:MEAN,DEVIATION`.
pub fn parse_lengths(text: &str) -> Result<LengthDistribution, LoadSettingError> {
    if let Some(pair) = text.strip_prefix("normal:") {
        let (mean, deviation) = pair.split_once(',').ok_or_else(|| wrong_lengths(text))?;
        let mean = parse_number(mean, 1.0).ok_or_else(|| wrong_lengths(text))?;
        let deviation = parse_number(deviation, 0.0).ok_or_else(|| wrong_lengths(text))?;
        return Ok(LengthDistribution::Normal(mean, deviation));
    }
    let Some((low, high)) = text.split_once("..") else {
        let length = within(text, 1, LONGEST).map_err(|_| wrong_lengths(text))?;
        return Ok(LengthDistribution::Fixed(length));
    };
    let low = within(low, 1, LONGEST).map_err(|_| wrong_lengths(text))?;
    let high = high.trim_start_matches('=');
    let high = within(high, 1, LONGEST).map_err(|_| wrong_lengths(text))?;
    if low > high { Err(wrong_lengths(text)) } else { Ok(LengthDistribution::Uniform(low, high)) }
}

/// Returns the error for text that is no distribution of lengths.
fn wrong_lengths(text: &str) -> LoadSettingError {
    LoadSettingError(format!(
        "`{text}` is no length; expected tokens as in 128, 64..256 or normal:128,32, \
         each from 1 to {LONGEST}"
    ))
}

/// Parses a number from `least` to the longest length.
fn parse_number(text: &str, least: f64) -> Option<f64> {
    let number = text.trim().parse::<f64>().ok();
    number.filter(|n| (least..=LONGEST as f64).contains(n))
}

/// Parses `ttft:MS`, `tpot:MS` or `e2el:MS`.
pub fn parse_objective(text: &str) -> Result<ServiceObjective, LoadSettingError> {
    let (name, bound) = text.split_once(':').ok_or_else(|| wrong_objective(text))?;
    let metric = match name {
        "ttft" => SloMetric::Ttft,
        "tpot" => SloMetric::Tpot,
        "e2el" => SloMetric::E2el,
        _ => return Err(wrong_objective(text)),
    };
    let bound = bound.parse::<f64>().ok().filter(|bound| *bound > 0.0 && bound.is_finite());
    let milliseconds = bound.ok_or_else(|| wrong_objective(text))?;
    Ok(ServiceObjective { metric, milliseconds })
}

/// Returns the error for text that is no objective.
fn wrong_objective(text: &str) -> LoadSettingError {
    LoadSettingError(format!(
        "`{text}` is no objective; expected ttft:MS, tpot:MS or e2el:MS with MS above 0"
    ))
}

/// Parses a JSON object, or `@FILE` with one.
pub fn parse_body(text: &str) -> Result<Map<String, Value>, LoadSettingError> {
    let json = match text.strip_prefix('@') {
        Some(path) => registry::file::read_text(path.as_ref(), registry::file::CONFIG)
            .map_err(|error| LoadSettingError(format!("cannot read `{path}`: {error}")))?,
        None => text.to_owned(),
    };
    let body: Map<String, Value> = serde_json::from_str(&json)
        .map_err(|error| LoadSettingError(format!("it is no JSON object: {error}")))?;
    match body.get("stream") {
        None | Some(Value::Bool(true)) => Ok(body),
        Some(other) => {
            let why = "only streamed answers show the time of each token";
            Err(LoadSettingError(format!("`stream` is `{other}`; {why}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_distributions() {
        assert_eq!(parse_lengths("128"), Ok(LengthDistribution::Fixed(128)));
        assert_eq!(parse_lengths("64..256"), Ok(LengthDistribution::Uniform(64, 256)));
        assert_eq!(parse_lengths("64..=256"), Ok(LengthDistribution::Uniform(64, 256)));
        assert_eq!(parse_lengths("normal:128,32.5"), Ok(LengthDistribution::Normal(128.0, 32.5)));
        for wrong in ["", "0", "9..3", "normal:1", "normal:nan,1", "normal:5,-1", "99999999999"] {
            assert!(
                parse_lengths(wrong).unwrap_err().to_string().contains("expected tokens"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn rates_ratios_and_percentiles_are_within_bounds() {
        assert_eq!((parse_rate("inf"), parse_rate("0.5")), (Ok(f64::INFINITY), Ok(0.5)));
        assert_eq!((parse_ratio("0.5"), parse_percentile("99.9")), (Ok(0.5), Ok(99.9)));
        for wrong in ["nan", "-1", "", "x"] {
            assert!(parse_rate(wrong).is_err() && parse_ratio(wrong).is_err(), "{wrong}");
            assert!(parse_percentile(wrong).is_err(), "{wrong}");
        }
        assert!(parse_rate("0").is_err() && parse_ratio("1").is_err());
        assert!(parse_request_count("0").is_err() && parse_connections("1025").is_err());
    }

    #[test]
    fn objectives_and_bodies_are_checked() {
        let objective = ServiceObjective { metric: SloMetric::Tpot, milliseconds: 50.0 };
        assert_eq!(parse_objective("tpot:50"), Ok(objective));
        for wrong in ["tpot", "itl:5", "ttft:0", "ttft:inf", "e2el:-1"] {
            assert!(parse_objective(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_body("{\"top_p\": 0.9}").unwrap().len(), 1);
        assert!(parse_body("[1]").unwrap_err().to_string().contains("no JSON object"));
        assert!(parse_body("{\"stream\": false}").unwrap_err().to_string().contains("`stream`"));
        assert!(parse_body("@/nowhere/at/all").unwrap_err().to_string().contains("cannot read"));
    }
}
