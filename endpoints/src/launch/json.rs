//! Formats a launch as JSON.

use registry::sheet::SourceReference;
use registry::sheet::apply::{RuleMessage, ValueOrigin};
use serde_json::{Map, Value, json};

use super::command;
use super::plan::PlannedLaunch;

/// Returns everything about the launch as one object.
pub fn json(launched: &PlannedLaunch) -> Value {
    let outcome = &launched.outcome;
    let settings = outcome.settings.iter().map(|chosen| {
        let setting = launched.sheet.settings.get(&chosen.name);
        json!({
            "name": chosen.name,
            "value": Value::from(&chosen.value),
            "words": command::flag(launched, chosen),
            "env": setting.and_then(|setting| setting.env.clone()),
            "by": match &chosen.by { ValueOrigin::User => "user", ValueOrigin::Model => "model", ValueOrigin::Rule(_) => "rule" },
            "rule": match &chosen.by { ValueOrigin::Rule(rule) => Some(rule), _ => None },
            "why": chosen.why,
            "source": chosen.source.as_ref().map(origin),
        })
    });
    let plan = outcome.plan.iter().map(|value| {
        json!({
            "name": value.name,
            "value": Value::from(&value.value),
            "unit": value.unit,
            "why": value.why,
            "assumed": value.assumed,
            "source": origin(&value.source),
        })
    });
    let gpu = &launched.asked.gpu;
    let refused = !outcome.refusals.is_empty();
    json!({
        "schema": "onboard-launch/1",
        "engine": launched.sheet.engine,
        "version": launched.version.name,
        "verified": launched.version.verified,
        "model": launched.model,
        "architecture": launched.architecture,
        "gpu": { "name": gpu.name, "memory_mib": gpu.memory, "sm": gpu.sm, "source": gpu.source },
        "tp": launched.asked.tp,
        "command": if refused { Vec::new() } else { command::words(launched, &launched.model) },
        "environment": command::environment(launched).into_iter().map(|(k, v)| (k, v.into())).collect::<Map<_, _>>(),
        "settings": settings.collect::<Vec<_>>(),
        "plan": plan.collect::<Vec<_>>(),
        "facts": messages(&outcome.facts),
        "warnings": messages(&outcome.warnings),
        "refusals": messages(&outcome.refusals),
    })
}

fn messages(all: &[RuleMessage]) -> Vec<Value> {
    all.iter()
        .map(|one| json!({ "rule": one.rule, "text": one.text, "source": one.source.as_ref().map(origin) }))
        .collect()
}

fn origin(origin: &SourceReference) -> Value {
    origin.place.as_str().into()
}
