//! Verification card: the checks that were run, with all their values, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use chat::check::{ChatRecord, ChatReport, ModelChatCheck, RecordError};
use chat::{Format, Template, TemplateError};
use models::coverage::TensorCoverage;
use models::local_model::LocalModel;
use parity::gate::{Gate, Mode};
use parity::mutate::{Fate, MutationReport, counts};
use parity::{Report, Verdict};
use registry::dtype::Dtype;
use registry::listing::error_chain;
use registry::quantity::bytes;
use registry::table::TextTable;
use serde::Serialize;
use serde_json::{Value, json};

/// Overall result of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofStatus {
    /// All comparisons agree.
    Proven,
    /// All comparisons agree, and parts of the model were not compared.
    ProvenInPart,
    /// A comparison differs.
    Differs,
    /// There is no reference to compare with.
    NotProven,
}

impl ProofStatus {
    /// Returns the result of a comparison; none without a reference.
    pub fn of(report: Option<&Report>) -> Self {
        match report.map(|report| (report.verdict(), report.limits.is_empty())) {
            None => Self::NotProven,
            Some((Verdict::Fail, _)) => Self::Differs,
            Some((_, false)) => Self::ProvenInPart,
            Some(_) => Self::Proven,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::ProvenInPart => "proven in part",
            Self::Differs => "differs",
            Self::NotProven => "not proven",
        }
    }
}

/// Verification card. It contains no time and no local path: the same inputs give the same card.
#[derive(Debug)]
pub struct Card<'a> {
    outcome: ProofStatus,
    facts: BTreeMap<&'static str, Value>,
    coverage: Option<TensorCoverage>,
    evidence: ProofResults<'a>,
    chat: ChatSummary,
}

/// Facts of a model's chat template.
#[derive(Debug, Default, Serialize)]
pub struct ChatSummary {
    /// True if the model has a chat template.
    template: bool,
    /// Format of tool calls and reasoning that the template writes; none if it is unknown.
    format: Option<&'static str>,
    /// Comparison with a record of transformers; none without a record.
    check: Option<ChatReport>,
    /// Reason why there is no comparison.
    note: Option<String>,
    /// Reason why the comparison has no tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_tokens: Option<String>,
}

impl ChatSummary {
    /// Reads the template of a model, and compares it with the record of its dump.
    pub fn read(model: &Path, reference: Option<&Path>) -> Self {
        let mut chat = Self::of(model, reference);
        // A card has no local path.
        let home = format!("{}/", model.display());
        let findings = chat.check.iter_mut().flat_map(|report| &mut report.findings);
        for text in findings
            .map(|finding| &mut finding.text)
            .chain(&mut chat.note)
            .chain(&mut chat.without_tokens)
        {
            *text = text.replace(&home, "");
        }
        chat
    }

    fn of(model: &Path, reference: Option<&Path>) -> Self {
        let template = match Template::of_model(model) {
            Ok(template) => template,
            Err(TemplateError::Missing { .. }) => return Self::default(),
            Err(error) => return Self { note: Some(error.to_string()), ..Self::default() },
        };
        let format = template.format().map(Format::name);
        let chat = Self { template: true, format, ..Self::default() };
        let record = match ChatRecord::of_model(model, reference) {
            Ok(record) => record,
            Err(RecordError::Missing { .. }) => return chat,
            Err(error) => return Self { note: Some(error.to_string()), ..chat },
        };
        match record.check_model(model) {
            Ok(ModelChatCheck { report, without_tokens }) => {
                Self { check: Some(report), without_tokens, ..chat }
            }
            Err(error) => Self { note: Some(error_chain(&error)), ..chat },
        }
    }

    /// Returns the section of the card; empty for a model without a template.
    fn markdown(&self) -> String {
        let mut text = String::new();
        if self.template {
            text.push_str("\n## Chat template\n\n");
            let mut table = TextTable::new(&[]);
            table.row(["check", "result"]);
            table.row(["format of tool calls and reasoning", self.format.unwrap_or("unknown")]);
            if let Some(report) = &self.check {
                for (name, count) in report.counts() {
                    table.row([name.to_owned(), format!("{} of {}", count.equal, count.of)]);
                }
            }
            text.push_str(&table.markdown());
            if let Some(why) = &self.without_tokens {
                let _ = writeln!(text, "\nTokens were not compared: {why}.");
            }
            if self.check.is_none() && self.note.is_none() {
                text.push_str(
                    "\nNot compared with transformers: the reference has no record of chats, which `parity dump` and \
                     the option `chat` make.\n",
                );
            }
        }
        for finding in self.check.iter().flat_map(|report| &report.findings) {
            let level = if finding.differs { "Differs" } else { "Warning" };
            let text_of = format!("{level} [{}]: {}", finding.kind, finding.text);
            write!(text, "\n{text_of}. Remedy: {}.\n", finding.remedy).ok();
        }
        if let Some(note) = &self.note {
            write!(text, "\nThe chat template was not compared: {note}\n").ok();
        }
        text
    }
}

/// Results of the comparisons.
#[derive(Debug, Clone, Copy)]
pub struct ProofResults<'a> {
    /// Comparison of the model with its reference; none without a reference.
    pub report: Option<&'a Report>,
    /// Measurement of the check with injected mistakes; none if not requested.
    pub book: Option<&'a MutationReport>,
}

/// Weights that a card describes.
#[derive(Debug)]
pub struct WeightsSummary {
    /// Pairs of weights and tensors; none for a GGUF file, which has rules of its own.
    pub coverage: Option<TensorCoverage>,
    /// Hash that identifies all bytes.
    pub fingerprint: String,
}

impl<'a> Card<'a> {
    /// Collects the facts.
    pub fn new(
        target: &LocalModel,
        weights: WeightsSummary,
        evidence: ProofResults<'a>,
        chat: ChatSummary,
        outcome: ProofStatus,
    ) -> Result<Self, models::Error> {
        let model = &target.model;
        let (size, parameters) = target.extent()?;
        let WeightsSummary { coverage, fingerprint } = weights;
        let states: Vec<Value> = model
            .graph
            .states
            .iter()
            .map(|state| json!({ "layer": state.layer, "name": state.name, "kind": state.kind.name(), "dtype": state.dtype.to_string() }))
            .collect();
        let facts = BTreeMap::from([
            ("name", json!(target.name)),
            ("architecture", json!(model.architecture)),
            ("layers", json!(model.graph.layers.len())),
            ("parameters", json!(parameters)),
            ("bytes", json!(size)),
            ("dtype", json!(target.dtype().name())),
            ("config_sha256", json!(target.config.sha256())),
            ("weights_sha256", json!(fingerprint)),
            ("spec", json!(target.spec)),
            ("states", json!(states)),
        ]);
        Ok(Self { outcome, facts, coverage, evidence, chat })
    }

    /// Returns the card as JSON; `parity` is the whole report.
    ///
    /// # Panics
    /// Never: a report is JSON.
    pub fn json(&self) -> String {
        let parity = self.evidence.report.map(|report| {
            serde_json::from_str::<Value>(&parity::json::json(report)).expect("a report is JSON")
        });
        let card = json!({
            "schema": "onboard-card/1",
            "onboard": env!("CARGO_PKG_VERSION"),
            "engine": "native",
            "verdict": self.outcome.word(),
            "model": self.facts,
            "coverage": self.coverage,
            "chat": self.chat,
            "parity": parity,
            "mistakes": self.evidence.book.map(|book| json!({ "counts": counts(book), "missed": missed_mutants(book) })),
        });
        serde_json::to_string_pretty(&card).expect("a value is JSON") + "\n"
    }

    /// Returns the card as Markdown.
    pub fn markdown(&self) -> String {
        let spec = &self.facts["spec"];
        let size = self.facts["bytes"].as_u64().unwrap_or_default();
        let mut table = TextTable::new(&[]);
        table.row(["fact", "value"]);
        table.row(["verdict".to_owned(), format!("**{}**", self.outcome.word())]);
        if let Some(unproven) = self.evidence.report.and_then(Report::unproven) {
            table.row(["not proven".to_owned(), unproven]);
        }
        table.row(["architecture".to_owned(), self.fact("architecture")]);
        table.row([
            "parameters".to_owned(),
            format!("{} in {}", self.fact("parameters"), bytes(size)),
        ]);
        if let Some(coverage) = &self.coverage {
            table.row(["weights".to_owned(), coverage.summary()]);
        }
        table.row(["config SHA-256".to_owned(), self.fact("config_sha256")]);
        table.row(["weights fingerprint".to_owned(), self.fact("weights_sha256")]);
        table.row([
            "spec".to_owned(),
            format!("{} ({})", text_of(spec, "name"), text_of(spec, "path")),
        ]);
        table.row(["spec SHA-256".to_owned(), text_of(spec, "sha256")]);
        table.row(["engine".to_owned(), format!("native, onboard {}", env!("CARGO_PKG_VERSION"))]);
        if let Some(report) = self.evidence.report {
            table.row(["reference".to_owned(), report.subject.producer.clone()]);
        }
        let mut text = format!("# {}\n\n{}\n", self.fact("name"), table.markdown());
        match self.evidence.report {
            None => text.push_str(
                "There was no reference to compare with: nothing about the numbers is proven.\n",
            ),
            Some(report) => {
                text.push_str(&compared(report));
                text.push_str(&caught_mutants(self.evidence.book));
            }
        }
        text.push_str(&self.chat.markdown());
        text
    }

    /// Returns a fact about the model as text.
    fn fact(&self, key: &str) -> String {
        match &self.facts[key] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

/// Lists injected mistakes that changed values and passed.
fn missed_mutants(book: &MutationReport) -> Vec<Value> {
    let missed = book.outcomes.iter().filter(|outcome| outcome.fate == Fate::Missed);
    missed.map(|o| json!({ "mistake": o.mutant, "dtype": o.dtype.name() })).collect()
}

/// Counts the mistakes that the check catches, and lists the names of the others.
fn caught_mutants(book: Option<&MutationReport>) -> String {
    let mut text = String::from("\n## Mistakes that the check catches\n\n");
    let Some(book) = book else {
        text.push_str(
            "Not measured; `add-model` with the option `measure` and `parity mutate` inject mistakes and count.\n",
        );
        return text;
    };
    let mut table = TextTable::new(&[2, 3]);
    table.row(["kind", "dtype", "caught", "missed"]);
    for row in counts(book).iter().filter(|row| row.caught + row.missed > 0) {
        let kind = row.class.name().to_owned();
        let dtype = row.dtype.to_string();
        table.row([kind, dtype, row.caught.to_string(), row.missed.to_string()]);
    }
    text.push_str(&table.markdown());
    for outcome in book.outcomes.iter().filter(|outcome| outcome.fate == Fate::Missed) {
        write!(text, "\nMissed in {}: {}.\n", outcome.dtype, outcome.mutant).ok();
    }
    text
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Skip => "skip",
        Verdict::Fail => "FAIL",
    }
}

fn compared(report: &Report) -> String {
    let mut text = String::from("## Log-probabilities\n\n");
    let mut table = TextTable::new(&[2, 3, 4, 5, 6, 7]);
    table.row(["dtype", "phase", "rows", "dlogp", "bound", "mean", "KL", "top-1", "verdict"]);
    for run in &report.runs {
        for phase in &run.phases {
            table.row([
                run.label(),
                phase.phase.to_string(),
                phase.rows.to_string(),
                format!("{:.2e}", phase.max),
                format!("{:.2e}", phase.limit),
                format!("{:.2e}", phase.mean),
                format!("{:.2e}", phase.kl),
                format!("{:.1} %", phase.top1 * 100.0),
                verdict(phase.verdict).to_owned(),
            ]);
        }
    }
    text.push_str(&table.markdown());
    text.push_str(&op_coverage(report));
    text.push_str(&gates(report));
    if !report.schedules.is_empty() {
        text.push_str("\n## Schedules\n\n");
        let mut table = TextTable::new(&[2, 3, 4]);
        table.row(["dtype", "schedule", "steps", "max dlogp", "bound", "verdict"]);
        for row in &report.schedules {
            table.row([
                row.dtype.to_string(),
                row.name.clone(),
                row.steps.to_string(),
                format!("{:.1e}", row.max),
                format!("{:.1e}", row.limit),
                verdict(row.verdict).to_owned(),
            ]);
        }
        text.push_str(&table.markdown());
    }
    for note in &report.notes {
        write!(text, "\nNote: {note}\n").ok();
    }
    text
}

/// Describes reach and strength of the comparisons of single ops.
fn op_coverage(report: &Report) -> String {
    let mut table = TextTable::new(&[]);
    table.row([
        "dtype",
        "prefill",
        "decode",
        "weakest op",
        "sees, of the rms",
        "experts",
        "windows not reached",
        "rows off by a single rounding",
    ]);
    for run in report.runs.iter().filter(|run| run.coverage.weakest.is_some()) {
        let coverage = &run.coverage;
        let (name, error) = coverage.weakest.clone().unwrap_or_default();
        let windows: Vec<String> = coverage.windows.iter().map(ToString::to_string).collect();
        table.row([
            run.label(),
            reach(coverage.prefill),
            reach(coverage.decode),
            format!("`{name}`"),
            format!("{error:.1e}"),
            coverage
                .experts
                .map_or_else(String::new, |(reached, all)| format!("{reached} of {all}")),
            windows.join(", "),
            coverage.strays.to_string(),
        ]);
    }
    format!("\n## Ops on the reference's own inputs\n\n{}", table.markdown())
}

/// Says up to which position rows were compared.
fn reach(last: Option<usize>) -> String {
    last.map_or_else(|| "not compared".to_owned(), |last| format!("to position {last}"))
}

/// Returns the text of a key; it is empty if there is none.
fn text_of(json: &Value, key: &str) -> String {
    json[key].as_str().unwrap_or_default().to_owned()
}

/// Returns the largest share of a gate's measures in their bounds; above 1, the gate fails.
fn bound_ratio(gate: &Gate) -> f64 {
    let shares = gate.bounds.iter().map(|bound| match bound.limit {
        limit if limit > 0.0 => bound.value / limit,
        _ if bound.holds() => 0.0,
        _ => f64::INFINITY,
    });
    shares.fold(0.0, |worst, share| if share > worst || share.is_nan() { share } else { worst })
}

/// Lists every subject with its worst gate, in the order of execution.
fn gates(report: &Report) -> String {
    let total: usize = report.runs.iter().map(|run| run.gates.len()).sum();
    let mut order: Vec<String> = Vec::new();
    let mut worst: BTreeMap<(String, Dtype, Mode), (f64, Verdict)> = BTreeMap::new();
    for run in &report.runs {
        for gate in &run.gates {
            let name = gate.subject.to_string();
            if !order.contains(&name) {
                order.push(name.clone());
            }
            let entry = worst.entry((name, run.dtype, gate.mode)).or_insert((0.0, Verdict::Skip));
            entry.0 = entry.0.max(bound_ratio(gate));
            // A pass outranks a skip here, and a failure outranks both.
            entry.1 = match (entry.1, gate.verdict) {
                (Verdict::Fail, _) | (_, Verdict::Fail) => Verdict::Fail,
                (Verdict::Pass, _) | (_, Verdict::Pass) => Verdict::Pass,
                (Verdict::Skip, Verdict::Skip) => Verdict::Skip,
            };
        }
    }
    let mut table = TextTable::new(&[1, 2, 3, 4, 5, 6]);
    let columns: Vec<(Dtype, Mode)> = report
        .runs
        .iter()
        .filter(|run| run.part.is_none())
        .flat_map(|run| [(run.dtype, Mode::Cumulative), (run.dtype, Mode::Local)])
        .collect();
    let mut head = vec!["compared".to_owned()];
    head.extend(columns.iter().map(|(dtype, mode)| format!("{dtype} {}", mode.name())));
    table.row(head);
    for name in &order {
        let mut row = vec![format!("`{name}`")];
        row.extend(columns.iter().map(|&(dtype, mode)| {
            match worst.get(&(name.clone(), dtype, mode)) {
                None => String::new(),
                Some((_, Verdict::Skip)) => "skip".to_owned(),
                Some((share, Verdict::Pass)) => format!("{share:.3}"),
                Some((share, Verdict::Fail)) => format!("**{share:.3}**"),
            }
        }));
        table.row(row);
    }
    format!(
        "\n## Gates\n\n{total} gates. A number is the largest error as a share of its bound, over all prompts, phases and \
         measures; above 1 is a failure. `local` runs each op on the reference's own inputs. Every single gate stands in card.json.\n\n{}",
        table.markdown()
    )
}
