//! Ops, steps, helpers and parts of files that a target takes from another.
//!
//! A base is a folder beside that of the target, or one that the program carries. A folder without a sheet is no target,
//! and has parts for others alone.

use std::path::Path;

use registry::diag::Finding;

use crate::target::Target;

impl Target {
    /// Reads what the target takes from its base, and from that of the base. `beside` is the folder with other
    /// targets, and `names` are those whose base this is.
    pub(crate) fn with_base(
        mut self,
        beside: Option<&Path>,
        names: &mut Vec<String>,
    ) -> Result<Self, Vec<Finding>> {
        let Some(name) = self.base.clone() else { return Ok(self) };
        if names.contains(&name.name) {
            let chain = [names.as_slice(), &[name.name]].concat().join("` takes from `");
            return Err(vec![Finding::error(&name.at, format!("`{chain}`: a circle"))]);
        }
        let is_name = name.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let folder = beside.map(|beside| beside.join(&name.name));
        let base = match folder.filter(|folder| is_name && folder.is_dir()) {
            Some(folder) => Self::own(&folder)?,
            None if is_name && Self::is_carried(&name.name) => Self::carried(&name.name)?,
            None => {
                let message = format!("there is no target `{}` to take from", name.name);
                return Err(vec![Finding::error(&name.at, message)]);
            }
        };
        names.push(name.name);
        let base = base.with_base(beside, names)?;
        self.take(base)?;
        Ok(self)
    }

    fn take(&mut self, base: Self) -> Result<(), Vec<Finding>> {
        let unknown = self.without.iter().filter(|op| !base.ops.contains_key(&op.name));
        let findings: Vec<Finding> = unknown
            .map(|op| {
                let message = format!("`{}` has no op `{}` to leave out", base.name, op.name);
                Finding::error(&op.at, message)
            })
            .collect();
        if !findings.is_empty() {
            return Err(findings);
        }
        for (name, op) in base.ops {
            if !self.ops.contains_key(&name) && !self.without.iter().any(|one| one.name == name) {
                self.ops.insert(name, op);
            }
        }
        for (name, step) in base.steps {
            self.steps.entry(name).or_insert(step);
        }
        // Of helpers those that its ops call.
        let helpers = self.ops.values().flat_map(|op| &op.helpers);
        let helpers = helpers.map(|name| format!("helpers/{}", name.trim_start_matches('*')));
        let mut wanted: Vec<String> = helpers.collect();
        wanted.extend(base.templates.keys().filter(|name| is_part(name)).cloned());
        for (name, template) in base.templates {
            if wanted.contains(&name) {
                self.templates.entry(name).or_insert(template);
            }
        }
        Ok(())
    }
}

/// True for a template that others include.
pub(crate) fn is_part(name: &str) -> bool {
    name.starts_with("parts/")
}
