//! Compares the constants of the rule with a table of correct checks and of mutants.
//!
//! Each line of the table is a check: its kind (`honest`, or the class of a mutant), its name, its dtype,
//! and the largest value of each measure, in units of the rule's constants. Other constants can thus be
//! tried without running anything.

use std::collections::BTreeMap;

use registry::dtype::Dtype;

use crate::gate::{Gate, Mode, Verdict};
use crate::report::RunReport;
pub use crate::report::{MEASURES, MeasureRatios};
use crate::route::RouterRow;
use crate::rule;

/// Constants of the rule, in the order of [`MEASURES`].
pub type RuleConstants = [f64; 6];

/// Constants of the current rule.
pub const RULE: RuleConstants =
    [rule::OP, rule::OP_GAIN, rule::FLIPS, rule::UNITS, rule::FACTOR, rule::FACTOR];

impl MeasureRatios {
    /// Reads the values of a run. A whole 16-bit run that fails although f32 agrees is more than a remark.
    pub(crate) fn of(run: &RunReport, f32_agrees: bool) -> Self {
        let mut ratios = Self::default();
        for gate in &run.gates {
            ratios.other |= gate.fails() && gate.finding.is_some();
            for bound in &gate.bounds {
                let Some(n) = MEASURES.iter().position(|name| *name == bound.measure) else {
                    continue;
                };
                ratios.values[n] = ratios.values[n].max(bound.value / bound.limit * RULE[n]);
            }
        }
        ratios.other |= run
            .routers
            .iter()
            .filter(|row: &&RouterRow| row.mode == Mode::Local || run.dtype == Dtype::F32)
            .any(|row| row.verdict == Verdict::Fail);
        let greedy = run.greedy.iter().any(|row| row.verdict == Verdict::Fail);
        let gates = run.dtype != Dtype::F32 && run.gates.iter().any(Gate::fails);
        let routers = run.routers.iter().any(|row| row.verdict == Verdict::Fail);
        ratios.other |= f32_agrees && (greedy || gates || routers);
        ratios
    }

    /// True if a check with these values fails. A value beyond the ensemble in 16 bits is only a remark.
    pub fn fails(&self, dtype: Dtype, numbers: &RuleConstants) -> bool {
        let judged = if dtype == Dtype::F32 { 6 } else { 4 };
        self.other || (0..judged).any(|n| self.values[n] > numbers[n])
    }
}

/// Number of failures and of all checks, by kind and dtype.
pub type FailureCounts = BTreeMap<(String, Dtype), (usize, usize)>;

/// Reason that a table cannot be judged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("the rule cannot be judged by {number}; expected numbers from 0 on")]
    Number { number: f64 },
    #[error(
        "line {line}: {fault}; expected kind, name, dtype, {} and other, with tabs between",
        MEASURES.join(", ")
    )]
    Line { line: usize, fault: TableFault },
    #[error("there is no line of a check")]
    Empty,
}

/// Fault of one line of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum TableFault {
    #[error("there are too few columns")]
    Columns,
    #[error("the third column is no dtype")]
    Dtype,
    #[error("the measures are not six numbers from 0 on")]
    Measures,
    #[error("the last column is neither 0 nor 1")]
    Other,
}

/// Judges every line of a table. The error for an unreadable line names it.
pub fn fit(table: &str, numbers: &RuleConstants) -> Result<FailureCounts, Error> {
    let mut counts = FailureCounts::new();
    let wrong_number = numbers.iter().find(|number| !number.is_finite() || **number < 0.0);
    if let Some(&number) = wrong_number {
        return Err(Error::Number { number });
    }
    for (n, line) in table.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let words: Vec<&str> = line.split('\t').collect();
        let [kind, _, dtype, values @ .., other] = words.as_slice() else {
            return Err(line_error(n, TableFault::Columns));
        };
        let dtype = Dtype::ALL.into_iter().find(|known| known.name() == *dtype);
        let dtype = dtype.ok_or_else(|| line_error(n, TableFault::Dtype))?;
        let values: Result<Vec<f64>, _> = values.iter().map(|value| value.parse()).collect();
        let values = values.ok().and_then(|values| <[f64; 6]>::try_from(values).ok());
        let values = values.filter(|values| values.iter().all(|value| *value >= 0.0));
        let values = values.ok_or_else(|| line_error(n, TableFault::Measures))?;
        let other = match *other {
            "0" => false,
            "1" => true,
            _ => return Err(line_error(n, TableFault::Other)),
        };
        let fails = MeasureRatios { values, other }.fails(dtype, numbers);
        let count = counts.entry(((*kind).to_owned(), dtype)).or_default();
        *count = (count.0 + usize::from(fails), count.1 + 1);
    }
    if counts.is_empty() {
        return Err(Error::Empty);
    }
    Ok(counts)
}

/// Returns the error for a line, given by its index.
fn line_error(index: usize, fault: TableFault) -> Error {
    Error::Line { line: index + 1, fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_judged_line_by_line() {
        let table = "# kind\tname\n\
                     honest\tllama 0\tf32\t12\t1\t0\t0\t3\t2\t0\n\
                     honest\tllama 0\tbf16\t0\t0\t0.01\t0\t99\t99\t0\n\
                     epsilon\tx\tf32\t12\t99\t0\t0\t3\t2\t0\n\
                     state\ty\tf16\t0\t0\t0\t0\t1\t1\t1\n";
        let counts = fit(table, &RULE).unwrap();
        assert_eq!(counts_of(&counts, "honest", Dtype::F32), (0, 1));
        assert_eq!(counts_of(&counts, "honest", Dtype::Bf16), (0, 1), "a remark");
        assert_eq!(
            (counts_of(&counts, "epsilon", Dtype::F32), counts_of(&counts, "state", Dtype::F16)),
            ((1, 1), (1, 1))
        );
        let tight = [4.0, 1.0, 0.1, 0.5, 8.0, 8.0];
        assert_eq!(fit(table, &tight).unwrap()[&("honest".to_owned(), Dtype::F32)], (1, 1));
        for (line, want) in [
            ("honest\ta", "too few"),
            ("honest\ta\tf8\t1\t1\t1\t1\t1\t1\t0", "no dtype"),
            ("honest\ta\tf32\t1\tx\t1\t1\t1\t1\t0", "six numbers"),
            ("honest\ta\tf32\t1\tNaN\t1\t1\t1\t1\t0", "six numbers"),
            ("honest\ta\tf32\t1\t1\t1\t1\t1\t1\t7", "neither 0 nor 1"),
        ] {
            let error = fit(line, &RULE).unwrap_err().to_string();
            assert!(error.starts_with("line 1: ") && error.contains(want), "{error}");
        }
        assert!(fit("# kind\n", &RULE).unwrap_err().to_string().contains("no line"));
        assert!(fit(table, &[f64::NAN; 6]).unwrap_err().to_string().contains("NaN"));
    }

    fn counts_of(counts: &FailureCounts, kind: &str, dtype: Dtype) -> (usize, usize) {
        counts[&(kind.to_owned(), dtype)]
    }
}
