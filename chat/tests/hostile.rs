//! Templates and messages that are made to harm: each ends in an error, in bounded time and memory.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use onboard_chat::{ChatRequest, OrderedJson, RequestError, Template, TemplateError};

fn request() -> ChatRequest {
    let json =
        r#"{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true}"#;
    ChatRequest::from_json(&OrderedJson::parse(json).unwrap()).unwrap()
}

fn render(source: &str) -> Result<String, TemplateError> {
    Template::from_source("hostile.jinja", source, []).render(&request())
}

/// Templates that loop, repeat or nest without end.
#[test]
fn endless_templates_are_stopped() {
    let nested =
        |n: usize| "{% for a in range(1000) %}".repeat(n) + "x" + &"{% endfor %}".repeat(n);
    // Values of 2^60 items, in a few hundred bytes.
    let doubled = |end: &str| {
        format!(
            "{{% set ns = namespace(a=[1], b=[1]) %}}{{% for i in range(60) %}}{{% set ns.a = [ns.a, ns.a] %}}\
             {{% set ns.b = [ns.b, ns.b] %}}{{% endfor %}}{end}"
        )
    };
    let sources = [
        nested(4),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}"
            .to_owned(),
        "{{ 'x' * 10000000000 }}".to_owned(),
        "{{ 'x' * 9223372036854775807 }}".to_owned(),
        "{{ [1] * 10000000000 }}".to_owned(),
        "{% set ns = namespace(a='x') %}{% for i in range(100) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}"
            .to_owned(),
        "{% set ns = namespace(a=[1]) %}{% for i in range(100) %}{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a }}"
            .to_owned(),
        "{% set ns = namespace(a=[1]) %}{% for i in range(100) %}{% set ns.a = ns.a * 3 %}{% endfor %}{{ ns.a }}"
            .to_owned(),
        "{% macro m(x) %}{{ m(x + x) }}{% endmacro %}{{ m([1]) }}".to_owned(),
        "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('x' * 1000) }}".to_owned(),
        "{{ range(100000000000) }}".to_owned(),
        "{{ range(-9223372036854775808, 9223372036854775807) }}".to_owned(),
        "{{ range(9223372036854775807, -9223372036854775808, -1) }}".to_owned(),
        "{{ 'a'.center(10000000000) }}{{ 'a'|center(10000000000) }}".to_owned(),
        "{{ 'a'.zfill(10000000000) }}".to_owned(),
        "{{ 'a'.ljust(10000000000) }}".to_owned(),
        "{{ '%1000000000d' % 1 }}{{ '%1000000000d'|format(1) }}".to_owned(),
        "{{ '{:>10000000000}'.format(1) }}".to_owned(),
        "{% set a = 'x' * 90000000 %}{% set b = a.replace('x', a) %}{{ b }}".to_owned(),
        "{{ ('x' * 1000000).replace('', 'y' * 1000000) }}".to_owned(),
        "{{ ('x' * 1000000)|replace('', 'y' * 1000000) }}".to_owned(),
        "{{ ('y' * 1000000).join('x' * 1000000) }}".to_owned(),
        "{{ ('x' * 1000000)|join('y' * 1000000) }}".to_owned(),
        "{{ ('x\n' * 1000000)|indent(10000) }}".to_owned(),
        "{{ ('x ' * 1000000)|wordwrap(1, wrapstring='y' * 100000) }}".to_owned(),
        "{{ ('x\\n' * 1000000)|wordwrap(9, wrapstring='y' * 100000) }}".to_owned(),
        "{{ ('x' * 1000000)|replace('x', 'y' * 1000000, 900000) }}".to_owned(),
        "{{ ('\\t' * 1000000).expandtabs(9223372036854775807) }}".to_owned(),
        doubled("{{ ns.a == ns.b }}"),
        doubled("{{ ns.a != ns.b }}"),
        doubled("{{ ns.a < ns.b }}"),
        doubled("{{ 1 < 2 and ns.a >= ns.b }}"),
        doubled("{{ ns.a in [ns.b] }}"),
        doubled("{{ ns.a not in [ns.b] }}"),
        doubled("{{ {'x': ns.a} == {'x': ns.b} }}"),
        doubled("{{ [ns.a, ns.b]|sort }}"),
        doubled("{{ [ns.a, ns.b]|unique|list }}"),
        doubled("{{ [ns.a, ns.b]|max }}"),
        doubled("{{ [{'k': ns.a}, {'k': ns.b}]|groupby('k') }}"),
        doubled("{{ {'x': ns.a, 'y': ns.b}|dictsort(by='value') }}"),
        doubled("{{ ns.a is eq(ns.b) }}"),
        doubled("{{ ns.a is in [ns.b] }}"),
        doubled("{{ [{'k': ns.a}]|selectattr('k', 'equalto', ns.b)|list }}"),
        doubled("{{ [ns.a]|map('list')|select('in', [ns.b])|list }}"),
        doubled("{{ [ns.a].index(ns.b) }}"),
        doubled("{{ [ns.a].count(ns.b) }}"),
        doubled("{% for x in [ns.a, ns.b] %}{{ loop.changed(x) }}{% endfor %}"),
        doubled("{{ {ns.a: 1} }}"),
        doubled("{{ {'x': 1}[ns.a] }}"),
        doubled("{{ {'x': 1}.get(ns.a) }}"),
        doubled("{{ ns.a|batch(1) == ns.b|batch(1) }}"),
        doubled("{{ '%s' % ns.a }}"),
        doubled("{{ '%s'|format(ns.a) }}"),
        doubled("{{ '{}'.format(ns.a) }}"),
        "{% set ns = namespace(a=[], b=[]) %}{% for i in range(90000) %}{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}{% endfor %}{{ ns.a == ns.b }}"
            .to_owned(),
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(),
        "{% for a in [1] recursive %}{{ loop([1]) }}{{ loop([1]) }}{% endfor %}".to_owned(),
        "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}"
            .to_owned(),
        "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a|tojson }}"
            .to_owned(),
        "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a ~ '' }}"
            .to_owned(),
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}{{ ns|tojson }}".to_owned(),
        "{{ [range(100000)|list]|tojson(indent='x' * 100000) }}".to_owned(),
        "{{ strftime_now('%c' * 100000) }}".to_owned(),
        "{{ strftime_now('%9999999999d') }}{{ raise_exception('end') }}".to_owned(),
        "{{ 2 ** 100000000 }}".to_owned(),
        "{{ 99999999999999999999999999 ** 99999999999 }}".to_owned(),
        "{% include 'hostile.jinja' %}".to_owned(),
        "{% extends 'default' %}".to_owned(),
        "{% import 'default' as d %}".to_owned(),
    ];
    for source in sources {
        let shown: String = source.chars().take(100).collect();
        let made = render(&source);
        let error = match made {
            // Printing is a bounded outcome too.
            Ok(text) if source.contains("~ ''") && text.len() < 1 << 20 => continue,
            Ok(text) => panic!("{shown}: a text of {} bytes", text.len()),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("hostile.jinja"), "{shown}: {error}");
        assert!(error.len() < 2000, "{shown}: {} bytes of error", error.len());
    }
}

/// Values that are nested deeply are freed without harm.
#[test]
fn deep_values_are_freed() {
    for wrap in [
        "[ns.a]",
        "{'a': ns.a}",
        "(ns.a,)",
        "[ns.a]|map('list')",
        "ns.a|batch(1)",
        "namespace(a=ns.a)",
        "dict(a=ns.a)",
        "ns.a + [1]",
        "ns.a|list|reverse",
        "ns.a[::-1]",
    ] {
        let source = format!(
            "{{% set ns = namespace(a=[1]) %}}{{% for i in range(90000) %}}{{% for j in range(9) %}}{{% set ns.a = {wrap} %}}{{% endfor %}}{{% endfor %}}end"
        );
        // Either the limit stops it, or it renders.
        match render(&source) {
            Ok(text) => assert_eq!(text, "end"),
            Err(error) => assert!(error.to_string().contains("hostile.jinja"), "{error}"),
        }
    }
}

/// Sources that nest in the parser or the compiler.
#[test]
fn nested_sources_are_refused() {
    let long = 300_000;
    let sources = [
        format!("{{{{ {}1{} }}}}", "(".repeat(long), ")".repeat(long)),
        format!("{{{{ {}1{} }}}}", "[".repeat(long), "]".repeat(long)),
        format!("{{{{ {}1 }}}}", "-".repeat(long)),
        format!("{{{{ {}1 }}}}", "not ".repeat(60_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(long)),
        format!("{{{{ x{} }}}}", "[0]".repeat(long)),
        format!("{{{{ x{} }}}}", "|e".repeat(long)),
        format!("{{{{ 1{} }}}}", "+1".repeat(long)),
        format!("{{{{ 1{} }}}}", "**1".repeat(long)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(40_000)),
        format!("{{{{ 1{} }}}}", " is defined".repeat(40_000)),
        format!("{}{}", "{% if 1 %}".repeat(50_000), "{% endif %}".repeat(50_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(80_000)),
        "{% for a in b %}".repeat(50_000),
        "{".repeat(1_000_000),
        "{{".repeat(500_000),
        "{%".repeat(500_000),
        "{% raw %}".repeat(100_000),
        "{#".repeat(500_000),
        format!("{{{{ '{}' }}}}", "x".repeat(2_000_000)),
        "x".repeat(2_000_000),
    ];
    for source in sources {
        let shown: String = source.chars().take(40).collect();
        let error = render(&source);
        let error = error.expect_err(&shown).to_string();
        assert!(error.contains("hostile.jinja") && error.len() < 2000, "{shown}: {error}");
    }
}

/// Nesting just below the limits is compiled and freed.
#[test]
fn nesting_below_the_limits_does_not_overflow() {
    let near = 60_000;
    for source in [
        format!("{{{{ x{} }}}}", "|e".repeat(near / 2)),
        format!("{{{{ 1{} }}}}", "+1".repeat(near / 2)),
        format!("{{{{ x{} }}}}", ".a".repeat(near / 2)),
        format!("{{{{ {}1 }}}}", "-".repeat(near)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(near / 12)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(19_000)),
        format!("{}{}", "{% if 1 %}".repeat(9_000), "{% endif %}".repeat(9_000)),
        format!("{{{{ [{}] }}}}", "1,".repeat(near / 2)),
        format!("{{{{ 1{} }}}}", "~1".repeat(near / 2)),
        format!("{{{{ 1{} }}}}", " and 1".repeat(near / 6)),
        format!("{{{{ 1{} }}}}", "<2".repeat(near / 2)),
    ] {
        // Ends, with a text or an error.
        drop(render(&source));
    }
}

/// Attributes lead nowhere but to the values given.
#[test]
fn attributes_lead_to_no_internals() {
    for source in [
        "{{ ''.__class__ }}",
        "{{ messages.__class__ }}",
        "{{ messages|attr('__class__') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__ }}",
        "{{ [].append.__self__ }}",
        "{{ self.__dict__ }}",
        "{{ cycler.__init__.__globals__.os }}",
    ] {
        // Nothing, or an error.
        if let Ok(text) = render(source) {
            assert_eq!(text, "", "{source}");
        }
    }
}

/// Requests that no conversation is.
#[test]
fn hostile_requests_are_refused() {
    let template = Template::from_source("t", "{{ messages }}", []);
    let render = |json: &str| {
        let json = OrderedJson::parse(json).map_err(|error| error.to_string())?;
        let request = ChatRequest::from_json(&json).map_err(|error| error.to_string())?;
        template.render(&request).map_err(|error| error.to_string())
    };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(
        render(&format!(r#"{{"messages": [{deep}]}}"#)).unwrap_err().contains("recursion limit")
    );
    let call = format!(
        r#"{{"messages": [{{"role": "a", "tool_calls": [{{"function": {{"arguments": "{deep}"}}}}]}}]}}"#
    );
    assert!(render(&call).unwrap_err().contains("is not JSON"));
    for json in [
        "[]",
        "{}",
        r#"{"messages": {}}"#,
        r#"{"messages": [null]}"#,
        r#"{"messages": [{}], "tools": [1]}"#,
    ] {
        assert!(render(json).is_err(), "{json}");
    }
    let request = ChatRequest::default();
    assert!(matches!(template.render(&request), Err(TemplateError::Request(RequestError::Empty))));
}
