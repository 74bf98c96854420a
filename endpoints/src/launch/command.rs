//! Words of a command, with quoting for shells and systemd units.

use registry::sheet::apply::ChosenSetting;

use super::plan::PlannedLaunch;

/// Returns the environment variables of a launch.
pub(crate) fn environment(launched: &PlannedLaunch) -> Vec<(String, String)> {
    let settings = launched.outcome.settings.iter();
    settings
        .filter_map(|chosen| {
            let setting = launched.sheet.settings.get(&chosen.name)?;
            Some((setting.env.clone()?, setting.spell(&chosen.value)))
        })
        .collect()
}

/// Returns the words of the command; `model` follows the model flag.
pub(crate) fn words(launched: &PlannedLaunch, model: &str) -> Vec<String> {
    let mut words = launched.sheet.command.clone();
    words.extend(model_words(launched, model));
    for chosen in &launched.outcome.settings {
        words.extend(flag(launched, chosen));
    }
    words
}

/// Returns the words that name the model.
pub(crate) fn model_words(launched: &PlannedLaunch, model: &str) -> Vec<String> {
    let flag = Some(launched.sheet.model_flag.clone()).filter(|flag| !flag.is_empty());
    flag.into_iter().chain([model.to_owned()]).collect()
}

/// Returns the words that pass a setting.
pub(crate) fn flag(launched: &PlannedLaunch, chosen: &ChosenSetting) -> Vec<String> {
    let setting = launched.sheet.settings.get(&chosen.name);
    setting.map(|setting| setting.words(&chosen.value)).unwrap_or_default()
}

/// Quotes a word for `ExecStart=` of a unit.
pub(crate) fn unit(word: &str) -> String {
    unit_setting(word).replace('$', "$$")
}

/// Quotes a word for `Environment=` of a unit, where `$` is not special.
pub(crate) fn unit_setting(word: &str) -> String {
    let escaped = word.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%");
    let escaped = escaped.replace('\n', r"\n");
    if !word.is_empty() && word.chars().all(|c: char| !c.is_whitespace() && !"'\"\\;".contains(c)) {
        escaped
    } else {
        format!("\"{escaped}\"")
    }
}

#[cfg(test)]
mod tests {
    use registry::shell::shell_word;

    use super::*;

    #[test]
    fn words_are_quoted() {
        for (word, in_shell, in_unit) in [
            ("--tp-size", "--tp-size", "--tp-size"),
            ("a b", "'a b'", "\"a b\""),
            ("", "''", "\"\""),
            ("it's", r"'it'\''s'", "\"it's\""),
            ("50%$x", "'50%$x'", "50%%$$x"),
            (r#"{"a": 1}"#, r#"'{"a": 1}'"#, r#""{\"a\": 1}""#),
        ] {
            assert_eq!(shell_word(word), in_shell);
            assert_eq!(unit(word), in_unit);
        }
    }
}
