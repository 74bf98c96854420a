use proptest::prelude::*;

use super::*;

fn source(text: &str) -> Arc<SourceText> {
    Arc::new(SourceText { path: "t.yaml".into(), text: text.into() })
}

/// Formats the tree in one line, with its scalars as `scalar` formats them.
fn in_one_line(node: &YamlNode, scalar: fn(&YamlNode) -> String) -> String {
    match &node.value {
        YamlValue::List(items) => {
            let items: Vec<String> = items.iter().map(|item| in_one_line(item, scalar)).collect();
            format!("[{}]", items.join(" | "))
        }
        YamlValue::Map(map) => {
            let entries: Vec<String> = map
                .iter()
                .map(|(key, entry)| format!("{key}: {}", in_one_line(&entry.value, scalar)))
                .collect();
            format!("{{{}}}", entries.join(" | "))
        }
        _ => scalar(node),
    }
}

/// Formats plain text bare, and other text in quotes.
fn show(node: &YamlNode) -> String {
    in_one_line(node, |node| match &node.value {
        YamlValue::Plain(text) => text.value().into(),
        YamlValue::Quoted(text) => format!("{:?}", text.value()),
        _ => "~".into(),
    })
}

fn tree(text: &str) -> String {
    match read(&source(text)) {
        Ok(node) => show(&node),
        Err(findings) => format!("{findings:?}"),
    }
}

#[test]
fn trees() {
    for (text, want) in [
        ("", "~"),
        ("# nothing\n", "~"),
        ("---\na: 1", "{a: 1}"),
        ("\u{feff}a: b\r\nc: d\r\n", "{a: b | c: d}"),
        ("a:\n  b: c # why\n  d:\ne: ~", "{a: {b: c | d: ~} | e: ~}"),
        ("a: b#c", "{a: b#c}"),
        ("a:\n- b\n- c: d\n  e: f\n-\n  g\n", "{a: [b | {c: d | e: f} | g]}"),
        ("-\n  - a", "[[a]]"),
        ("a:\n  b:", "{a: {b: ~}}"),
        ("- - a\n  - b\n- c", "[[a | b] | c]"),
        ("a: [b, 'c', [d], {e: f, g: ~}]", "{a: [b | \"c\" | [d] | {e: f | g: ~}]}"),
        ("a: [\n  b, # one\n  c,\n]\nd: e", "{a: [b | c] | d: e}"),
        ("a: 'it''s' # x\nb: \"q\\\"\\u00e9\\n\"", "{a: \"it's\" | b: \"q\\\"é\\n\"}"),
        ("'a b': c\n\"d\": e", "{a b: c | d: e}"),
        ("f(x, y=1): |\n  return x\n", "{f(x, y=1): \"return x\"}"),
        ("*: |\n  x\na|b: c", "{*: \"x\" | a|b: c}"),
        ("a: |\n    x = 1\n\n      y # kept\n  \nb: c", "{a: \"x = 1\\n\\n  y # kept\" | b: c}"),
        ("a: |-\n  x", "{a: \"x\"}"),
        ("a: |\nb: c", "{a: \"\" | b: c}"),
        ("a: = b\n   + c\nd: e", "{a: = b + c | d: e}"),
        ("a: x[1:2]", "{a: x[1:2]}"),
        // Brackets inside plain text balance.
        ("a: [b, = ['x, y' for i in range(n)]]", "{a: [b | = ['x, y' for i in range(n)]]}"),
        ("a: [f(x, y), z[0], m.{i}.w]", "{a: [f(x, y) | z[0] | m.{i}.w]}"),
        ("a: { b: max(c, d), e: = [1, 2] }", "{a: {b: max(c, d) | e: = [1, 2]}}"),
        ("a: { d: m.{i}.{q|k}.w, w: m.{i}.qk }", "{a: {d: m.{i}.{q|k}.w | w: m.{i}.qk}}"),
        ("a: [b, = (c\n   + d)]", "{a: [b | = (c + d)]}"),
    ] {
        assert_eq!(tree(text), want, "{text}");
    }
}

#[test]
fn places() {
    let node = read(&source("é: 1\na: |\n  x = é\n  return x\nb: ['c''d', e]\n")).unwrap();
    let map = node.map().unwrap();
    let program = map["a"].value.text().unwrap();
    assert_eq!(program.value(), "x = é\nreturn x");
    let at = program.at(7..13);
    assert_eq!((at.text(), at.line(), at.column()), ("return", 4, 3));
    let YamlValue::List(items) = &map["b"].value.value else { panic!() };
    assert_eq!(items[0].at.text(), "'c''d'");
    assert_eq!((items[1].at.text(), items[1].at.line(), items[1].at.column()), ("e", 5, 13));
}

/// Formats every finding as `line:column message`.
fn findings(text: &str) -> Vec<String> {
    let refusals = read(&source(text)).err().unwrap_or_default();
    refusals
        .iter()
        .map(|finding| {
            let at = finding.at.as_ref().unwrap();
            format!("{}:{} {}", at.line(), at.column(), finding.message)
        })
        .collect()
}

#[test]
fn broken_yaml() {
    for (text, want) in [
        ("a: b\na: c", "2:1 `a` stands twice"),
        ("a:\n\tb: c", "2:1 a tab cannot indent a line"),
        ("a: &x b", "1:4 anchors and aliases are not read"),
        ("a: *x", "1:4 anchors and aliases are not read"),
        ("a: !!str b", "1:4 tags are not read"),
        ("<<: b", "1:1 merge keys are not read"),
        ("a: b\n---\nc: d", "2:1 a file is one YAML document"),
        ("%YAML: 1.2", "1:1 YAML keeps this character for itself"),
        ("a: >\n  b", "1:4 folded blocks are not read"),
        ("a: |2\n  b", "1:5 a block with a set indent"),
        ("a: 'b", "1:4 this quoted text does not end on its line"),
        ("a: \"\\q\"", "1:5 an unknown escape"),
        ("a: 'b' c", "1:8 unexpected text after this value"),
        ("a: b: c", "1:5 a colon and a blank inside plain text"),
        ("a: b\n  c: d", "2:4 a colon and a blank inside plain text"),
        ("a: [b\nc: d", "1:4 this `[` is never closed"),
        ("a: {b: c\nd: e", "1:4 this `{` is never closed"),
        ("a: [f(x]", "1:6 this `(` is never closed"),
        ("a: [b: c]", "1:6 a key inside a list"),
        ("a: {b}", "1:5 a key without a value"),
        ("a: [b,, c]", "1:7 a value is missing here"),
        ("a: ['b' c]", "1:9 expected `,` or `]`"),
        ("a: - b", "1:4 a list item on the line of its key"),
        ("a: b\n- c", "2:1 a list item among the keys of a map"),
        ("a: b\nc", "2:1 this line has no key"),
        ("a:b\nc: d", "2:2 a colon and a blank inside plain text"),
        ("a: |\n   b\n  c", "3:1 this line is indented less than the first line of its block"),
        ("a:\n  b: c\n   d: e", "3:5 a colon and a blank inside plain text"),
        ("a: [b]\n   d: e", "2:4 this line is indented further than its neighbours"),
        ("  a: b\nc: d", "2:1 this line belongs to nothing above it"),
        ("a: b\u{0}", "1:5 the control character \\u{0} in this file"),
        ("a: [b\rc]", "1:6 the control character \\u{d} in this file"),
        ("a: {b: c\r\r, d: e}", "1:9 the control character \\u{d} in this file"),
        ("a: b\rc", "1:5 the control character \\u{d} in this file"),
    ] {
        assert_eq!(findings(text), [want], "{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(findings(&deep).iter().any(|f| f.contains("levels deep")), "{:?}", findings(&deep));
    let deep: String = (0..200).fold(String::new(), |text, n| text + &" ".repeat(n) + "a:\n");
    assert!(findings(&deep).iter().any(|f| f.contains("levels deep")));
    assert!(findings(&" ".repeat(MAX_BYTES + 1))[0].contains("this file has"));
    assert!(findings(&"a: &b\n".repeat(10_000)).len() <= MAX_FINDINGS + 2);
}

#[test]
fn several_mistakes_are_found_at_once() {
    assert_eq!(
        findings("a: &x 1\nb: [1\nc: 'd\nc: e\nf\n"),
        [
            "1:4 anchors and aliases are not read",
            "2:4 this `[` is never closed",
            "3:4 this quoted text does not end on its line",
            "4:1 `c` stands twice",
            "5:1 this line has no key",
        ]
    );
}

/// Formats a text as a general YAML reader sees it, in the words of [`show`].
fn other(node: &saphyr::Yaml<'_>) -> String {
    use saphyr::Yaml;
    match node {
        Yaml::Value(value) => scalar_text(value),
        Yaml::Sequence(items) => {
            format!("[{}]", items.iter().map(other).collect::<Vec<_>>().join(" | "))
        }
        Yaml::Mapping(map) => {
            format!(
                "{{{}}}",
                map.iter()
                    .map(|(key, value): (&Yaml<'_>, &Yaml<'_>)| {
                        format!("{}: {}", other(key).trim_matches('"'), other(value))
                    })
                    .collect::<Vec<_>>()
                    .join(" | ")
            )
        }
        _ => panic!("{node:?}"),
    }
}

fn scalar_text(scalar: &saphyr::Scalar<'_>) -> String {
    match scalar {
        saphyr::Scalar::Null => "~".to_owned(),
        saphyr::Scalar::Boolean(value) => value.to_string(),
        saphyr::Scalar::Integer(value) => value.to_string(),
        saphyr::Scalar::FloatingPoint(value) => value.to_string(),
        saphyr::Scalar::String(value) => format!("{:?}", value.trim_end_matches('\n')),
    }
}

/// Formats like [`show`], with plain text read as a general reader would.
fn resolved(node: &YamlNode) -> String {
    in_one_line(node, |node| match &node.value {
        // The last newline of a block is not kept here.
        YamlValue::Quoted(text) => format!("{:?}", text.value().trim_end_matches('\n')),
        YamlValue::Plain(text) => other(&saphyr::Yaml::value_from_str(text.value())),
        _ => "~".into(),
    })
}

/// Generates YAML text of nested maps and lists, in both styles.
fn yaml_text() -> impl Strategy<Value = String> {
    let scalar = prop::sample::select(vec![
        "word",
        "a.b.c",
        "12",
        "= a + b",
        "'it''s'",
        "\"q\\n\"",
        "~",
        "x_1 y",
        "1e-6",
        "true",
        "|\n%  line one\n%\n%    deeper # kept",
        "é ü",
    ]);
    let leaf = scalar.prop_map(|text| (text.to_owned(), !text.contains('\n')));
    let node = leaf.prop_recursive(4, 24, 4, |inner| {
        (prop::collection::vec((inner, "[a-e]{1,3}"), 1..4), 0..4u8).prop_map(|(items, style)| {
            let flow = style < 2 && items.iter().all(|((_, flow), _)| *flow);
            let mut seen = Vec::new();
            let items = items.into_iter().filter(|(_, key)| {
                let new = !seen.contains(key);
                seen.push(key.clone());
                new
            });
            let texts: Vec<String> = items
                .map(|((text, inline), key)| match (flow, style % 2) {
                    (true, 0) => text,
                    (true, _) => format!("{key}: {text}"),
                    (false, 0) if text.starts_with('|') || inline => format!("%- {text}"),
                    (false, 0) => format!("%-\n{}", text.replace('%', "%  ")),
                    (false, _) if text.starts_with('|') => {
                        format!("%{key}: {}", text.replace('%', "%  "))
                    }
                    (false, _) if inline => format!("%{key}: {text} # why"),
                    (false, _) => format!("%{key}:\n{}", text.replace('%', "%  ")),
                })
                .collect();
            match (flow, style % 2) {
                (true, 0) => (format!("[{}]", texts.join(", ")), true),
                (true, _) => (format!("{{ {} }}", texts.join(", ")), true),
                _ => (texts.join("\n"), false),
            }
        })
    });
    node.prop_filter("a bare scalar is no spec", |(text, _)| !text.starts_with('|'))
        .prop_map(|(text, _)| text.replace('%', ""))
}

proptest! {
    /// Checks that this reader agrees with a general YAML reader on texts without unquoted brackets inside
    /// text.
    #[test]
    fn it_reads_what_a_general_reader_reads(text in yaml_text()) {
        use saphyr::LoadableYamlNode as _;
        let theirs = saphyr::Yaml::load_from_str(&text).unwrap();
        let ours = read(&source(&text));
        prop_assert!(ours.is_ok(), "{text}\n{ours:?}");
        prop_assert_eq!(resolved(&ours.unwrap()), other(&theirs[0]), "{}", text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
        read(&source(&text)).map(drop).unwrap_or_default();
    }

    #[test]
    fn any_pieces_are_read_or_refused(pieces in prop::collection::vec(prop::sample::select(vec![
        "a", "b: ", ":", "\n", "\n  ", "\n    ", "- ", "[", "]", "{", "}", ",", "'", "\"", "|", "|\n",
        "#", " #", "= ", "(", ")", "~", "\t", "\r\n", "é", "\\", "---", "*", "&x ", "? ", "\u{feff}",
    ]), 0..40)) {
        let text = pieces.concat();
        match read(&source(&text)) {
            Ok(node) => drop(show(&node)),
            Err(findings) => for finding in findings {
                let at = finding.at.unwrap();
                prop_assert!(text.get(at.start..at.end).is_some(), "{finding:?}", finding = finding.message);
            },
        }
    }
}
