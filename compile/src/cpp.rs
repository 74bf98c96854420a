//! Classes of written code as structs of C++: members that are initialized where they stand, constructors and methods.

use std::collections::{BTreeMap, BTreeSet};

use crate::classes::Class;
use crate::cpp_code::CppType;
use crate::cpp_code::{CodeExpr, CppNames};
use crate::cpp_expression::{all_of, condition, enclosed, negated, parsed, written};
use crate::cpp_types::{meant_type, written_type};
use crate::value::CodeLine;

/// A struct of C++ for templates.
#[derive(Debug, Default)]
pub(crate) struct CppClass {
    /// Lines of members with their initializers.
    pub(crate) members: Vec<String>,
    /// Parameters of the constructor besides those of all classes.
    pub(crate) params: Vec<String>,
    /// Lines of the constructor.
    pub(crate) init: Vec<String>,
    pub(crate) methods: Vec<CppMethod>,
}

/// A method of a struct: its name, parameters and lines.
#[derive(Debug, Default)]
pub(crate) struct CppMethod {
    pub(crate) name: String,
    pub(crate) returns: String,
    pub(crate) params: String,
    pub(crate) body: Vec<String>,
}

/// A value that a member gets, if a condition holds.
struct MemberValue {
    condition: Option<CodeExpr>,
    value: CodeExpr,
}

/// A line of a class: a comment, or a member with its values.
enum MemberLine {
    Comment(String),
    Member(String, Vec<MemberValue>),
}

/// The class of the settings.
const SETTINGS: &str = "Config";

/// Types of settings, as their uses show them.
#[derive(Default)]
pub(crate) struct SettingUses {
    /// Those that are sizes, and so integers.
    pub(crate) sizes: BTreeSet<String>,
    /// Those that may be texts.
    pub(crate) compared: BTreeSet<String>,
}

/// Types of members by their names, of each class.
pub(crate) type CppMembers = BTreeMap<String, BTreeMap<String, String>>;

/// Writes the lines of one class.
pub(crate) struct CppWriter<'c> {
    /// Classes that are written already.
    classes: &'c CppMembers,
    /// True for the class of the settings.
    is_settings: bool,
    /// Types of settings, as their uses show them.
    uses: &'c SettingUses,
    /// Members by name, with their types.
    pub(crate) members: BTreeMap<String, String>,
    /// Attributes that are settings, by name.
    settings: BTreeMap<String, String>,
    order: Vec<MemberLine>,
    /// Names of the scope under way.
    pub(crate) locals: BTreeSet<String>,
    /// Lines of the constructor.
    init: Vec<String>,
    /// Classes by the names of kinds of layers.
    kinds: Vec<(String, String)>,
    /// Code that has no form in C++.
    unwritable: Vec<String>,
}

impl CppNames for CppWriter<'_> {
    fn member(&self, path: &[&str]) -> String {
        if let [name] = path
            && let Some(setting) = self.settings.get(*name)
        {
            return format!("config.{setting}");
        }
        let (member, mut left, mut ty) = longest(&self.members, path);
        let this = if self.locals.contains(&member) { "this->" } else { "" };
        let mut text = format!("{this}{member}");
        while !left.is_empty() {
            let inside = ty.strip_prefix("OneOf<").and_then(|ty| ty.strip_suffix('>'));
            text += if inside.is_some() { "->" } else { "." };
            let Some(class) = self.classes.get(inside.unwrap_or(ty)) else {
                return text + &left.join(".");
            };
            let (member, behind, inner) = longest(class, left);
            text += &member;
            (left, ty) = (behind, inner);
        }
        text
    }

    fn config(&self) -> &'static str {
        if self.is_settings { "config" } else { "config.config" }
    }

    fn type_of(&self, member: &str) -> Option<CppType> {
        match self.settings.get(member) {
            Some(setting) => self.setting_type(setting),
            None => CppType::of(self.members.get(member)?),
        }
    }

    fn setting_type(&self, name: &str) -> Option<CppType> {
        CppType::of(self.classes.get(SETTINGS)?.get(name)?)
    }
}

/// Returns the member that a path leads to, the path below it and its type. A path of several names is one member, if a class has made it
/// by a line of its own.
fn longest<'p, 't>(
    members: &'t BTreeMap<String, String>,
    path: &'p [&'p str],
) -> (String, &'p [&'p str], &'t str) {
    let mut count = path.len();
    while count > 1 && !members.contains_key(&path[..count].join("_")) {
        count -= 1;
    }
    let member = path[..count].join("_");
    let ty = members.get(&member).map_or("", String::as_str);
    (member, &path[count..], ty)
}

/// Returns the name of the class that an expression constructs; none if it is a value of the config.
fn constructed(expr: &CodeExpr) -> Option<&str> {
    if let CodeExpr::Call(name, _) = expr
        && let CodeExpr::Name(name) = &**name
        && name.starts_with(char::is_uppercase)
    {
        return Some(name);
    }
    None
}

/// True for the constructor of a class of the file, which takes the settings.
fn is_class(expr: &CodeExpr) -> bool {
    matches!(expr, CodeExpr::Call(_, given) if given.first().is_some_and(|(_, one)| one.is_name("config")))
        && constructed(expr).is_some()
}

/// True for what fills a gap in a list of modules.
fn is_gap(item: &CodeExpr) -> bool {
    matches!(item, CodeExpr::Call(name, _) if name.is_name("Gap"))
}

/// Returns the items of a list of modules; none for other code.
fn listed_modules(expr: &CodeExpr) -> Option<&[CodeExpr]> {
    match expr {
        CodeExpr::Call(name, given) if name.is_name("modules") => match given.first() {
            Some((_, CodeExpr::List(items))) => Some(items),
            _ => None,
        },
        _ => None,
    }
}

/// Returns a name or a literal text as it stands; empty for anything else.
fn word(expr: &CodeExpr) -> String {
    match expr {
        CodeExpr::Name(text) | CodeExpr::Text(text) => text.clone(),
        _ => String::new(),
    }
}

/// Splits `name = value`.
pub(crate) fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once(" = ")?;
    name.chars().all(|c| c.is_alphanumeric() || "_., ".contains(c)).then_some((name, value))
}

/// True if an argument has a name, which becomes a call behind the constructor.
fn has_names(made: &CodeExpr) -> bool {
    matches!(made, CodeExpr::Call(_, given) if given.iter().any(|(name, _)| name.is_some()))
}

/// Returns the argument of `prefix.at(...)`.
fn path_of(prefix: &CodeExpr) -> Option<&CodeExpr> {
    match prefix {
        CodeExpr::Call(_, given) => given.first().map(|(_, path)| path),
        _ => None,
    }
}

/// False for a key that a config may lack, and for a list.
fn may_be_size(value: &CodeExpr) -> bool {
    match value {
        CodeExpr::Call(name, given) if name.is_name("read") => {
            given.iter().any(|(name, _)| name.is_some())
        }
        CodeExpr::List(_) | CodeExpr::Each { .. } | CodeExpr::Map(_) => false,
        _ => true,
    }
}

pub(crate) fn indent(depth: usize, text: &str) -> String {
    format!("{}{text}", "    ".repeat(depth))
}

/// Joins two conditions.
fn joined(outer: Option<&CodeExpr>, inner: CodeExpr) -> CodeExpr {
    match outer {
        Some(outer) => all_of(outer.clone(), inner),
        None => inner,
    }
}

impl<'c> CppWriter<'c> {
    fn new(classes: &'c CppMembers, is_settings: bool, uses: &'c SettingUses) -> Self {
        Self {
            classes,
            is_settings,
            uses,
            members: BTreeMap::new(),
            settings: BTreeMap::new(),
            order: Vec::new(),
            locals: BTreeSet::new(),
            init: Vec::new(),
            kinds: Vec::new(),
            unwritable: Vec::new(),
        }
    }

    /// Notes code that has no form in C++, unless it has one.
    pub(crate) fn known<T>(&mut self, text: &str, form: Option<T>) -> Option<T> {
        if form.is_none() {
            self.unwritable.push(text.to_owned());
        }
        form
    }

    pub(crate) fn expr(&mut self, text: &str) -> String {
        self.known(text, parsed(text)).map(|expr| written(&expr, self)).unwrap_or_default()
    }

    pub(crate) fn condition(&mut self, text: &str) -> String {
        self.known(text, parsed(text)).map(|expr| condition(&expr, self)).unwrap_or_default()
    }

    /// Collects the members that lines of a constructor set.
    fn collect(&mut self, lines: &[CodeLine], under: Option<&CodeExpr>) {
        for line in lines {
            match line {
                CodeLine::Text(text) => match text.strip_prefix('#') {
                    Some(comment) => self.order.push(MemberLine::Comment(format!("//{comment}"))),
                    None => self.collect_one(text, under),
                },
                CodeLine::If(text, yes, no) => {
                    let Some(test) = self.known(text, parsed(text)) else { continue };
                    let otherwise = joined(under, negated(&test));
                    self.collect(yes, Some(&joined(under, test)));
                    self.collect(no, Some(&otherwise));
                }
                CodeLine::For(head, _) => self.unwritable.push(head.clone()),
            }
        }
    }

    fn collect_one(&mut self, text: &str, under: Option<&CodeExpr>) {
        let parts = assignment(text).and_then(|(name, value)| Some((name, parsed(value)?)));
        let Some((name, value)) = self.known(text, parts) else { return };
        if let (CodeExpr::Map(pairs), "kinds") = (&value, name) {
            self.kinds = pairs.iter().map(|(key, value)| (word(key), word(value))).collect();
            return;
        }
        let member = name.strip_prefix("self.").unwrap_or(name);
        if constructed(&value) == Some("Empty") || value.is_name(member) || member == "layer" {
            return;
        }
        if let CodeExpr::Attribute(base, setting) = &value
            && base.is_name("config")
            && under.is_none()
            && name != member
        {
            self.settings.insert(member.to_owned(), setting.clone());
            return;
        }
        if let Some(module) = member.strip_suffix(".weight") {
            let path: Vec<&str> = module.split('.').collect();
            let weight = self.member(&path);
            let other = written(&value, self);
            let line = format!("tie(prefix, \"{member}\", {weight}.weight, {other});");
            self.under(under, &line);
            return;
        }
        let one = MemberValue { condition: under.cloned(), value };
        let name = member.replace('.', "_");
        let known = self.order.iter_mut().find_map(|line| match line {
            MemberLine::Member(other, values) if *other == name => Some(values),
            _ => None,
        });
        match known {
            Some(values) => values.push(one),
            None => self.order.push(MemberLine::Member(name.clone(), vec![one])),
        }
        self.members.entry(name).or_default();
    }

    /// Adds a line to the constructor, under a condition.
    fn under(&mut self, test: Option<&CodeExpr>, line: &str) {
        match test {
            Some(test) => {
                let test = condition(test, self);
                self.init.push(indent(2, &format!("if ({test}) {{")));
                self.init.push(indent(3, line));
                self.init.push(indent(2, "}"));
            }
            None => self.init.push(indent(2, line)),
        }
    }

    /// Returns the arguments of a constructor; those of a class know the number of the layer by themselves.
    fn given(&self, made: &CodeExpr) -> String {
        let CodeExpr::Call(_, given) = made else { return String::new() };
        let number = is_class(made).then_some("layer");
        let given =
            given.iter().filter(|(_, value)| number.is_none_or(|name| !value.is_name(name)));
        given.map(|(_, value)| written(value, self)).collect::<Vec<_>>().join(", ")
    }

    /// Returns the line of a member: its type, name and initializer.
    fn member_line(&mut self, name: &str, values: &[MemberValue]) -> String {
        if let [MemberValue { condition: None, value }] = values {
            let (ty, line) = self.plain_member(name, value);
            self.members.insert(name.to_owned(), ty);
            return indent(1, &line);
        }
        let classes: Vec<&str> = values.iter().filter_map(|one| constructed(&one.value)).collect();
        let first = values.first().and_then(|one| Some((one.condition.as_ref()?, &one.value)));
        let (Some((test, value)), true) = (first, classes.len() == values.len()) else {
            return self.chosen_value(name, values);
        };
        let shown = condition(test, self);
        let alike = values.iter().all(|one| self.given(&one.value) == self.given(value));
        let is_else = match values {
            [_, other] => other.condition.as_ref().is_some_and(|other| *other == negated(test)),
            _ => values.len() == 1,
        };
        if !is_class(value) && values.len() == 1 {
            let ty = classes[0];
            let given = self.given(value);
            self.members.insert(name.to_owned(), ty.to_owned());
            let (path, tail) = given.split_once(')').unwrap_or((&given, ""));
            return indent(1, &format!("{ty} {name}{{{path}).when({shown}){tail}}};"));
        }
        let mut all: Vec<&str> = Vec::new();
        for class in &classes {
            if !all.contains(class) {
                all.push(class);
            }
        }
        if !is_class(value) && all.len() == 1 && is_else {
            let ty = classes[0];
            let sides: Vec<String> = values.iter().map(|one| written(&one.value, self)).collect();
            self.members.insert(name.to_owned(), ty.to_owned());
            return indent(1, &format!("{ty} {name} = {shown} ? {};", sides.join(" : ")));
        }
        let ty = format!("OneOf<{}>", all.join(", "));
        self.members.insert(name.to_owned(), ty.clone());
        if alike && is_else && all.len() == values.len() {
            return indent(1, &format!("{ty} {name}{{{shown}, {}}};", self.given(value)));
        }
        for one in values {
            let class = constructed(&one.value).unwrap_or_default().to_owned();
            let given = self.given(&one.value);
            let line = format!("{name}.emplace<{class}>({given});");
            self.under(one.condition.as_ref(), &line);
        }
        indent(1, &format!("{ty} {name};"))
    }

    /// Writes a module of a list, or a gap.
    fn list_item(&self, item: &CodeExpr) -> String {
        if is_gap(item) { "{}".to_owned() } else { written(item, self) }
    }

    /// Returns the type and the line of a member that has one value.
    fn plain_member(&mut self, name: &str, value: &CodeExpr) -> (String, String) {
        if let Some(items) = listed_modules(value) {
            if let Some(CodeExpr::Each { body, names, over, .. }) = items.first() {
                let layers = self.layers(body, names, over);
                let (ty, given) = self.known("a list of layers", layers).unwrap_or_default();
                let line = format!("{ty} {name}{{{given}}};");
                return (ty, line);
            }
            let class = items.iter().find(|item| !is_gap(item)).and_then(constructed);
            let ty = format!("std::vector<{}>", class.unwrap_or_default());
            let all: Vec<String> = items.iter().map(|item| self.list_item(item)).collect();
            let line = format!("{ty} {name} = {{{}}};", all.join(", "));
            return (ty, line);
        }
        match constructed(value) {
            Some(ty) if !has_names(value) => {
                (ty.to_owned(), format!("{ty} {name}{{{}}};", self.given(value)))
            }
            Some(ty) => (ty.to_owned(), format!("{ty} {name} = {};", written(value, self))),
            None => self.setting(name, value),
        }
    }

    /// Returns the type and the line of a member that is no module.
    fn setting(&self, name: &str, value: &CodeExpr) -> (String, String) {
        let code = written(value, self);
        if let Some(ty) = written_type(value, self) {
            return (ty.name().to_owned(), format!("{} {name} = {code};", ty.name()));
        }
        let is_size = self.uses.sizes.contains(name) && may_be_size(value);
        let ty = match meant_type(value, self) {
            _ if !self.is_settings || self.uses.compared.contains(name) => None,
            None => is_size.then_some(CppType::Int),
            ty => ty,
        };
        let Some(ty) = ty else {
            return ("Value".to_owned(), format!("Value {name} = {code};"));
        };
        let line = format!("{} {name} = {}.{}();", ty.name(), enclosed(value, self), ty.reader());
        (ty.name().to_owned(), line)
    }

    /// Returns the line of a setting whose values depend on conditions.
    fn chosen_value(&mut self, name: &str, values: &[MemberValue]) -> String {
        self.members.insert(name.to_owned(), "Value".to_owned());
        if let [
            MemberValue { condition: None, value },
            MemberValue { condition: Some(test), value: other },
        ] = values
            && let CodeExpr::Binary("is", left, right) = test
            && right.is_name("None")
            && condition(left, self) == name
        {
            let other = written(other, self);
            let value = match value {
                CodeExpr::Call(..) => written(value, self),
                _ => format!("({})", written(value, self)),
            };
            let head = indent(1, &format!("Value {name} = {value}.otherwise([&] {{"));
            let body = indent(2, &format!("return {other};"));
            return [head, body, indent(1, "});")].join("\n");
        }
        self.unwritable.push(format!("{name} = ..."));
        String::new()
    }

    /// Returns the type of a list of layers, and what makes it: the number of layers and, if there are several classes, the kinds of layers
    /// that have each, and the kind of each layer.
    fn layers(
        &self,
        body: &CodeExpr,
        names: &[String],
        over: &CodeExpr,
    ) -> Option<(String, String)> {
        let number = names.first()?;
        let (count, kinds) = match over {
            CodeExpr::Call(_, given) => match (names.len(), &given.first()?.1) {
                (1, count) => (written(count, self), None),
                (_, CodeExpr::Slice(list, _, Some(count))) => {
                    (written(count, self), Some(written(list, self)))
                }
                (_, list) => {
                    (format!("len_of({})", written(list, self)), Some(written(list, self)))
                }
            },
            other => (written(other, self), None),
        };
        let CodeExpr::Call(class, given) = body else { return None };
        let CodeExpr::Form(path) = path_of(&given.get(1)?.1)? else { return None };
        let path = path.replace(&format!("{{{number}}}"), "{}");
        let (key, other) = match &**class {
            CodeExpr::Name(class) => {
                let given = format!("config, prefix, {path}, {count}");
                return Some((format!("Layers<{class}>"), given));
            }
            CodeExpr::Index(_, key) => (&**key, None),
            CodeExpr::Call(_, choice) => {
                let [(_, key), (_, class)] = choice.as_slice() else { return None };
                (key, Some(word(class)))
            }
            _ => return None,
        };
        let mut classes: Vec<(String, Vec<String>)> = Vec::new();
        for (kind, class) in &self.kinds {
            match classes.iter_mut().find(|(other, _)| other == class) {
                Some((_, kinds)) => kinds.push(kind.clone()),
                None => classes.push((class.clone(), vec![kind.clone()])),
            }
        }
        classes.extend(other.map(|class| (class, Vec::new())));
        let kinds = kinds.unwrap_or_else(|| {
            let each = format!("const Value & {number}");
            format!(
                "each(range({count}), [&]({each}) -> Value {{ return {}; }})",
                written(key, self)
            )
        });
        let named = classes.iter().map(|(_, kinds)| match kinds.as_slice() {
            [] => "nullptr".to_owned(),
            [one] => one.clone(),
            several => format!("list({{{}}})", several.join(", ")),
        });
        let named: Vec<String> = named.collect();
        let given =
            format!("config, prefix, {path}, {count}, {kinds}, list({{{}}})", named.join(", "));
        let classes: Vec<String> = classes.into_iter().map(|(class, _)| class).collect();
        Some((format!("Layers<{}>", classes.join(", ")), given))
    }

    /// Writes the lines of members.
    fn members(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for line in std::mem::take(&mut self.order) {
            lines.push(match line {
                MemberLine::Comment(text) => indent(1, &text),
                MemberLine::Member(name, values) => self.member_line(&name, &values),
            });
        }
        lines
    }
}

/// Writes a class and adds it to those that are written, or returns code of it that has no form in C++.
pub(crate) fn class(class: &Class, classes: &mut CppMembers) -> Result<CppClass, Vec<String>> {
    let uses = SettingUses::default();
    let mut writer = CppWriter::new(classes, false, &uses);
    writer.collect(&class.init, None);
    let members = writer.members();
    let methods = class.methods.iter().map(|method| writer.method(method)).collect();
    if !writer.unwritable.is_empty() {
        return Err(writer.unwritable);
    }
    let params = class.params.iter().map(|name| crate::value::parameter(name));
    let params = params.filter(|name| name != "layer").collect();
    let CppWriter { members: types, init, .. } = writer;
    classes.insert(class.name.clone(), types);
    Ok(CppClass { members, params, init, methods })
}

/// Writes the settings: members and how they are read.
pub(crate) fn settings(
    lines: &[CodeLine],
    uses: &SettingUses,
    classes: &mut CppMembers,
) -> Result<CppClass, Vec<String>> {
    let mut writer = CppWriter::new(classes, true, uses);
    writer.collect(lines, None);
    let members = writer.members();
    if !writer.unwritable.is_empty() {
        return Err(writer.unwritable);
    }
    let CppWriter { members: types, init, .. } = writer;
    classes.insert(SETTINGS.to_owned(), types);
    Ok(CppClass { members, init, ..CppClass::default() })
}
