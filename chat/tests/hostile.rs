//! Templates and messages that are made to harm: each ends in an error, in bounded time and memory.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Instant;

use onboard_chat::{
    ChatRequest, OrderedJson, RenderControl, RequestError, Template, TemplateError,
};

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
    let sources = [
        "{% for a in range(1000) %}".repeat(4) + "x" + &"{% endfor %}".repeat(4),
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
        let error = match render(&source) {
            // Printing is a bounded outcome too.
            Ok(text) if source.contains("~ ''") && text.len() < 1 << 20 => continue,
            Ok(text) => panic!("{shown}: a text of {} bytes", text.len()),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("hostile.jinja"), "{shown}: {error}");
        assert!(error.len() < 2000, "{shown}: {} bytes of error", error.len());
    }
}

/// Values of 2^60 items, in a few hundred bytes.
fn doubled(end: &str) -> String {
    format!(
        "{{% set ns = namespace(a=[1], b=[1]) %}}{{% for i in range(60) %}}{{% set ns.a = [ns.a, ns.a] %}}\
             {{% set ns.b = [ns.b, ns.b] %}}{{% endfor %}}{end}"
    )
}

/// Results that read a list or a text anew are charged for its size, each time: a chain of them would read it through
/// every level. The limit is of steps, so it ends each of these templates before their loops end.
#[test]
fn lazy_values_are_charged() {
    for (begin, next) in [
        ("range(4000)|list", "ns.x[0:]"),
        ("range(4000)|list", "ns.x[::-1]"),
        ("range(4000)|list", "ns.x[:4000:1]"),
        ("range(4000)|list", "([ns.x][0])[0:]"),
        ("range(4000)|list", "ns.x[0:]|list"),
        ("range(4000)|list", "ns.x|reverse|list"),
        ("range(4000)|list", "ns.x|reverse"),
        ("range(4000)|list", "ns.x|map('int')"),
        ("range(4000)|list", "ns.x|select('number')"),
        ("range(4000)|list", "ns.x|reject('none')"),
        ("range(4000)|list", "ns.x|batch(4000)|first"),
        ("range(4000)|list", "ns.x|slice(1)|first"),
        ("range(4000)|list", "ns.x|unique"),
        ("range(4000)|list", "ns.x|sort"),
        ("range(4000)|list", "ns.x + []"),
        ("range(4000)|list", "ns.x * 1"),
        ("range(4000)|list", "[ns.x[3999:], ns.x][1]"),
        ("range(4000)|list", "[ns.x|last, ns.x[1:]|first, ns.x][2]"),
        ("range(4000)|list", "[5000 in ns.x, ns.x][1]"),
        ("range(4000)|list", "[ns.x.index(3999), ns.x][1]"),
        ("range(4000)|list", "[ns.x.count(1), ns.x][1]"),
        ("range(4000)|list", "[ns.x|sum, ns.x][1]"),
        ("dict(range(4000)|batch(2))", "dict(ns.x)"),
        ("dict(range(4000)|batch(2))", "dict(ns.x.items())"),
        ("dict(range(4000)|batch(2))", "[ns.x.keys()|list, ns.x][1]"),
        ("dict(range(4000)|batch(2))", "[ns.x.values()|list, ns.x][1]"),
        ("dict(range(4000)|batch(2))", "[ns.x|items|list, ns.x][1]"),
        ("dict(range(4000)|batch(2))", "[ns.x|dictsort, ns.x][1]"),
        ("'x' * 400000", "ns.x[0:]"),
        ("'x' * 400000", "ns.x[::-1]"),
        ("'x' * 400000", "ns.x|reverse"),
        ("'x' * 400000", "ns.x ~ ''"),
        ("'x' * 400000", "ns.x|upper"),
        ("'x' * 400000", "ns.x.strip()"),
        ("'x' * 400000", "[ns.x.count('y'), ns.x][1]"),
        ("'x' * 400000", "[ns.x == ns.x, ns.x][1]"),
        ("'x' * 400000", "[ns.x in [ns.x], ns.x][1]"),
        ("'x' * 400000", "[{ns.x: 1}, ns.x][1]"),
    ] {
        let source = format!(
            "{{% set ns = namespace(x={begin}) %}}{{% for i in range(30000) %}}{{% set ns.x = {next} %}}{{% endfor %}}end"
        );
        match render(&source) {
            Err(TemplateError::Limit { unit: "steps", .. }) => {}
            Ok(_) => panic!("{next} of {begin} is not charged"),
            Err(error) => panic!("{next} of {begin}: {error}"),
        }
    }
}

/// A rendering ends when its time is over or nobody waits, wherever it loops.
#[test]
fn renderings_are_ended_from_outside() {
    let ended = RenderControl::default();
    ended.cancel();
    let late = RenderControl::until(Instant::now());
    for source in [
        "{% for i in range(3) %}{% set x = i %}{% endfor %}",
        "{% set x = messages[0].role.strip() %}",
        "{% set x = messages|map('list') %}",
        "{% set x = messages[0].role + 'x' %}",
        "{% set x = messages[0:] %}",
        "{% set x = [2] == messages %}",
        "{{ messages }}",
        "{{ messages|tojson }}",
    ] {
        let template = hostile_template(source);
        assert!(
            matches!(
                template.render_within(&request(), &ended),
                Err(TemplateError::Cancelled { .. })
            ),
            "{source}"
        );
        assert!(
            matches!(template.render_within(&request(), &late), Err(TemplateError::Late { .. })),
            "{source}"
        );
        template.render_within(&request(), &RenderControl::default()).unwrap();
    }
    // In the middle of a loop without a filter, whose steps would last for minutes.
    let control = RenderControl::default();
    let message = format!(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}]}}",
        "x".repeat(12 << 20)
    );
    let request = ChatRequest::from_json(&OrderedJson::parse(&message).unwrap()).unwrap();
    let template = hostile_template(
        "{% for a in range(100000) %}{% for b in range(100000) %}{% set x = b %}{% endfor %}{% endfor %}",
    );
    let canceller = control.clone();
    let waiting = std::thread::spawn(move || canceller.cancel());
    let outcome = template.render_within(&request, &control);
    assert!(matches!(outcome, Err(TemplateError::Cancelled { .. })), "{outcome:?}");
    waiting.join().unwrap();
}

fn hostile_template(source: &str) -> Template {
    Template::from_source("hostile.jinja", source, [])
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
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(
        render_request(&template, &format!(r#"{{"messages": [{deep}]}}"#))
            .unwrap_err()
            .contains("recursion limit")
    );
    let call = format!(
        r#"{{"messages": [{{"role": "a", "tool_calls": [{{"function": {{"arguments": "{deep}"}}}}]}}]}}"#
    );
    assert!(render_request(&template, &call).unwrap_err().contains("is not JSON"));
    for json in [
        "[]",
        "{}",
        r#"{"messages": {}}"#,
        r#"{"messages": [null]}"#,
        r#"{"messages": [{}], "tools": [1]}"#,
    ] {
        assert!(render_request(&template, json).is_err(), "{json}");
    }
    let request = ChatRequest::default();
    assert!(matches!(template.render(&request), Err(TemplateError::Request(RequestError::Empty))));
}

fn render_request(template: &Template, json: &str) -> Result<String, String> {
    let json = OrderedJson::parse(json).map_err(|error| error.to_string())?;
    let request = ChatRequest::from_json(&json).map_err(|error| error.to_string())?;
    template.render(&request).map_err(|error| error.to_string())
}
