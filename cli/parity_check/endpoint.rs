//! `parity check MODEL --engine http://HOST:PORT`: checks a server by its responses.

use anyhow::{Context as _, Result, bail, ensure};
use endpoints::EndpointOptions;
use models::coverage::TensorCoverage;
use parity::beside::{beside, open_dump};
use parity::evidence::{CheckTimes, EvidenceOptions, check_server};
use parity::{Dump, Verdict};
use registry::dtype::Dtype;
use tokenizer::ReferenceTokenizer;

use super::ParityCheckArgs;
use crate::engines::{api_key, native, set_endpoint};
use crate::findings::check_error;
use crate::target;
use crate::{CommandOutcome, term};

/// Maximum vocabulary size for which whole rows are requested.
const WHOLE: usize = 4096;

/// Number of entries per row of a larger vocabulary.
const TOP: usize = 64;

/// Settings of the client, from `--engine-option`.
struct ClientSettings {
    options: EndpointOptions,
    tokens: usize,
    parallel: usize,
}

impl ParityCheckArgs {
    pub(super) fn run_server(&self, url: &str) -> Result<CommandOutcome> {
        for (flag, given) in [
            ("--plain-graph", self.plain_graph),
            ("--allow-dtype-mismatch", self.allow_dtype_mismatch),
            ("--w8a8", self.w8a8),
            ("--w8a16", self.w8a16),
            ("--source", self.source.is_some()),
        ] {
            ensure!(
                !given,
                "the server at `{url}` builds its own graph, so {flag} has no effect on it"
            );
        }
        let dtype = match self.dtype.as_slice() {
            [] => None,
            [one] => Some(*one),
            _ => bail!("a server runs in one dtype; give one with --dtype"),
        };
        let target = target::open(&self.which, &self.choice)?;
        if !target.is_gguf() {
            target::covered(
                &TensorCoverage::of(&target.model, &target.checkpoint()?),
                &target.dir,
            )?;
        }
        let dump = self.dump_of(&target.dir)?;
        let settings = self.settings(target.model.vocab)?;
        let server = endpoints::connect(url, &settings.options)?;
        let tokenizer = ReferenceTokenizer::read(target.home()).ok().flatten();
        let encode = |text: &str, around: bool| tokenizer.as_ref()?.encode(text, around).ok();
        let options = EvidenceOptions {
            dtype,
            bound: self.bound,
            tokens: settings.tokens,
            parallel: settings.parallel,
            schedules: !self.no_schedules,
            threads: self.threads,
            tokenizer: tokenizer.is_some().then_some(&encode),
        };
        let native = native()?;
        let judged = check_server(
            server.as_ref(),
            native.as_ref(),
            &target::source(&target),
            dump.as_ref(),
            &options,
        );
        let evidence = judged.map_err(|error| match error {
            parity::evidence::Error::Check(error) => check_error(error),
            other => other.into(),
        })?;
        print_effort(&evidence.effort);
        let mut report = evidence.report;
        report.subject.sha256.spec = Some(target.spec.sha256.clone());
        if report.runs.iter().any(|run| run.verdict() == Verdict::Fail) {
            if self.diagnose {
                let observed = &evidence.observed;
                let noise = evidence.noise;
                report.diagnosis = self.diagnose_server(
                    &target::source(&target),
                    evidence.dtype,
                    observed,
                    noise,
                )?;
            } else {
                term::note("hint: --diagnose looks for what the server ignores of the model");
            }
        }
        if report.verdict() == Verdict::Fail && dtype.is_none() && server.facts().dtype.is_none() {
            let narrow = [Dtype::Bf16, Dtype::F16].map(Dtype::name).join(" or ");
            report
                .notes
                .push(format!("a server that runs in {narrow} is judged as such with --dtype"));
        }
        self.conclude(&report, &target.model)
    }

    /// Returns the given dump, or the one beside the model, if there is one.
    fn dump_of(&self, dir: &std::path::Path) -> Result<Option<Dump>> {
        if self.reference.is_none() && beside(dir).is_none() {
            return Ok(None);
        }
        let (_, dump) = open_dump(dir, self.reference.as_deref())?;
        Ok(Some(dump))
    }

    fn settings(&self, vocab: usize) -> Result<ClientSettings> {
        let mut settings = ClientSettings {
            options: EndpointOptions {
                vocab,
                top: if vocab <= WHOLE { vocab } else { TOP },
                answer: self.engine.timeout,
                key: api_key()?,
                ..EndpointOptions::default()
            },
            tokens: 16,
            parallel: 4,
        };
        for option in &self.engine.options {
            let (key, value) = option
                .split_once('=')
                .with_context(|| format!("--engine-option `{option}`: expected KEY=VALUE"))?;
            settings.set(key, value).with_context(|| format!("--engine-option {key}"))?;
        }
        Ok(settings)
    }
}

/// Parses a count.
fn count(value: &str, limit: usize) -> Result<usize> {
    let number = value.parse::<usize>().ok().filter(|n| (1..=limit).contains(n));
    number.with_context(|| format!("`{value}` is no count; expected 1 to {limit}"))
}

impl ClientSettings {
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "driver" => self.options.driver = Some(value.to_owned()),
            "top" => self.options.top = count(value, 1 << 20)?,
            "tokens" => self.tokens = count(value, 4096)?,
            "parallel" => self.parallel = count(value, 256)?,
            _ => ensure!(
                set_endpoint(&mut self.options, key, value)?,
                "there is no such setting of a server; expected `model`, `driver`, `timeout`, `top`, `tokens`, `parallel`, \
                 `key-env`, `ca` or `insecure`"
            ),
        }
        Ok(())
    }
}

/// Prints how the time was spent.
fn print_effort(effort: &CheckTimes) {
    term::note(&format!(
        "time: {:.1} s for the server, {:.1} s for the native engine",
        effort.server.as_secs_f64(),
        effort.native.as_secs_f64()
    ));
}
