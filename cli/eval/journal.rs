//! Items that an interrupted evaluation has scored already, as lines of `OUTPUT.part`.

use std::collections::BTreeMap;

use parity::evals::ScoredItem;
use serde_json::{Value, json};

/// Returns the line of an item: its record as written, and the bits of its scores.
pub(super) fn line(scored: &ScoredItem) -> String {
    let scores: BTreeMap<&str, u64> =
        scored.scores.iter().map(|(metric, score)| (metric.as_str(), score.to_bits())).collect();
    json!({ "record": scored.record.to_string(), "scores": scores, "dropped": scored.dropped })
        .to_string()
}

/// Parses a line into the record's text and the scores; none if it is incomplete.
pub(super) fn parse(line: &str) -> Option<(String, ScoredItem)> {
    let value: Value = serde_json::from_str(line).ok()?;
    let scores = value["scores"].as_object()?.iter();
    let scores =
        scores.map(|(metric, bits)| Some((metric.clone(), f64::from_bits(bits.as_u64()?))));
    let item = ScoredItem {
        record: Value::Null,
        scores: scores.collect::<Option<_>>()?,
        dropped: usize::try_from(value["dropped"].as_u64()?).ok()?,
    };
    Some((value["record"].as_str()?.to_owned(), item))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_the_item_back() {
        let score = 0.1 + 0.2;
        let scores = BTreeMap::from([("acc".to_owned(), score)]);
        let item = ScoredItem { record: json!({ "id": "a", "x": 0.1 }), scores, dropped: 3 };
        let line = line(&item);
        let (record, found) = parse(&line).unwrap();
        assert_eq!(record, item.record.to_string());
        assert_eq!(found.scores["acc"].to_bits(), score.to_bits());
        assert_eq!(found.dropped, 3);
        for end in 0..line.len() {
            assert!(parse(&line[..end]).is_none(), "{end}");
        }
    }
}
