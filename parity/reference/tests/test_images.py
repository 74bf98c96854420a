"""Prompts with images: what enters the text model is found, and given again without the encoder."""
from __future__ import annotations

import types
import unittest

import torch
from onboard_dump.audit import chunk_sizes
from onboard_dump.failures import Fail
from onboard_dump.images import Given, Images, Seen, changed, draw_encoder, nested
from onboard_dump.masks import given_of, mask_of

HIDDEN, PLACE = 4, 7


class Text(torch.nn.Module):
    """A text model: the sum of what each token sees, turned by its positions."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(9, HIDDEN)
        self.seen = []

    def forward(self, inputs_embeds=None, position_ids=None, visual_pos_masks=None, deepstack_visual_embeds=None):
        x = inputs_embeds + (0 if position_ids is None else position_ids[0, 0, :, None] * 0.1)
        for rows in deepstack_visual_embeds or ():
            x = x.masked_scatter(visual_pos_masks[..., None], x[visual_pos_masks] + rows)
        self.seen.append((position_ids, visual_pos_masks))
        return x.cumsum(1)


class Wrapper(torch.nn.Module):
    """A class with an encoder beside the text model."""

    def __init__(self, hidden_input: bool = False):
        super().__init__()
        inner = types.SimpleNamespace()
        self.config = types.SimpleNamespace(image_token_id=3, get_text_config=lambda decoder=False: inner)
        self.dtype, self.language_model, self.encoder = torch.float32, Text(), torch.nn.Linear(2, HIDDEN)
        self.hidden_input = hidden_input

    def get_input_embeddings(self):
        return self.language_model.embed_tokens

    def forward(self, input_ids, use_cache=False, pixel_values=None, position_ids=None):
        embeds, more = self.language_model.embed_tokens(input_ids), {}
        if pixel_values is not None:
            rows, mask = self.encoder(pixel_values), input_ids == self.config.image_token_id
            embeds = embeds.masked_scatter(mask[..., None], rows)
            position_ids = torch.arange(input_ids.shape[1])[None, None].expand(3, 1, -1) * 2
            more = dict(visual_pos_masks=mask, deepstack_visual_embeds=[rows * 2])
        out = self.language_model(inputs_embeds=embeds, position_ids=position_ids, **more)
        return types.SimpleNamespace(logits=out + (1 if self.hidden_input and pixel_values is not None else 0))


def prompt() -> dict:
    return {"name": "image", "tokens": [1, PLACE, PLACE, 2, PLACE, 5], "split": 3, "taps": []}


def observed(model, told: dict) -> Images:
    torch.manual_seed(0)
    return Images(model, {"image": ({"pixel_values": torch.randn(3, 2)}, {"image_token_id": PLACE})}, [told])


class ImagesTest(unittest.TestCase):
    def test_a_prompt_is_told_what_enters_the_text_model(self):
        told, model = prompt(), Wrapper()
        images = observed(model, told)
        self.assertEqual(told["given"], [1, 2, 4])
        self.assertEqual(told["beside"], 1)
        self.assertEqual(model.config.image_token_id, 3)
        tensors = images.tensors("f32")
        self.assertEqual(sorted(tensors), ["f32/image/beside/0", "f32/image/given"])
        self.assertTrue(torch.equal(tensors["f32/image/beside/0"], tensors["f32/image/given"] * 2))

    def test_parts_of_a_prompt_get_their_rows(self):
        told, model = prompt(), Wrapper()
        images, tokens = observed(model, told), torch.tensor([prompt()["tokens"]])
        with torch.no_grad():
            whole = model.language_model.embed_tokens(tokens)
            for start, end in [(0, 6), (0, 2), (2, 5), (5, 6)]:
                with images.during("image", start, end) as outer:
                    self.assertEqual(outer["position_ids"][0, 0].tolist(), list(range(2 * start, 2 * end, 2)))
                    part = model.language_model.embed_tokens(tokens[:, start:end])
                rows = images.given["image"].rows
                wanted = whole[0].clone()
                wanted[told["given"]] = rows
                self.assertTrue(torch.equal(part[0], wanted[start:end]))
                self.assertEqual("visual_pos_masks" in images.given["image"].inner(start, end), any(start <= at < end for at in told["given"]))
            self.assertTrue(torch.equal(model.language_model.embed_tokens(tokens), whole))

    def test_a_class_that_is_given_more_is_refused(self):
        with self.assertRaisesRegex(Fail, "more enters the text model of Wrapper"):
            observed(Wrapper(hidden_input=True), prompt())

    def test_a_class_whose_tokens_count_by_its_config_is_refused(self):
        class OfConfig(Wrapper):
            def forward(self, input_ids, **more):
                found = super().forward(input_ids, **more)
                return types.SimpleNamespace(logits=found.logits + (input_ids == self.config.image_token_id).sum())

        with self.assertRaisesRegex(Fail, "more enters the text model of OfConfig"):
            observed(OfConfig(), prompt())

    def test_tokens_that_encode_an_image_are_not_those_of_the_prompt(self):
        class OfTokens(Wrapper):
            def forward(self, input_ids, pixel_values=None, **more):
                rows = None if pixel_values is None else self.language_model.embed_tokens(torch.tensor([[4, 6, 8]]))
                self.encoder = torch.nn.Identity()
                return super().forward(input_ids, pixel_values=None if rows is None else rows[0], **more)

        told = prompt()
        observed(OfTokens(), told)
        self.assertEqual(told["given"], [1, 2, 4])

    def test_pixels_without_places_are_refused(self):
        told = prompt() | {"tokens": [1, 2, 5]}
        with self.assertRaisesRegex(Fail, "no embedding was replaced"):
            Images(Wrapper(), {"image": ({"pixel_values": torch.zeros(0, 2)}, {"image_token_id": PLACE})}, [told])

    def test_spans_are_read_from_masks(self):
        seen = Seen(Text(), torch.nn.Embedding(2, 2))
        causal = torch.ones(6, 6, dtype=torch.bool).tril()
        self.assertEqual(seen.spans_of(6), {})
        for spans, wanted in [([(1, 3), (4, 6)], {"spans": [[1, 3], [4, 6]]}), ([(0, 3)], {"prefix": 3})]:
            mask = causal.clone()
            for start, end in spans:
                mask[start:end, start:end] = True
            seen.masks = [causal[None, None], mask[None, None]]
            self.assertEqual(seen.spans_of(6), wanted)
        mask = causal.clone()
        mask[1, 3] = True
        seen.masks = [mask[None, None]]
        with self.assertRaisesRegex(Fail, "do not see each other alike"):
            seen.spans_of(6)
        seen.close()

    def test_positions_that_count_the_tokens_are_none(self):
        seen = Seen(Text(), torch.nn.Embedding(2, 2))
        seen.positions = torch.arange(4)[None].expand(3, 1, 4)
        self.assertEqual(seen.positions_of(4), {})
        seen.positions = torch.tensor([[1, 2, 3, 4]])
        self.assertEqual(seen.positions_of(4), {"positions": [[1, 2, 3, 4]]})
        seen.close()

    def test_settings_are_changed_where_they_were_copied_and_put_back(self):
        model = Wrapper()
        model.encoder.image_token_id = 3
        with changed(model, {"image_token_id": 2}):
            self.assertEqual((model.config.image_token_id, model.encoder.image_token_id), (2, 2))
        self.assertEqual((model.config.image_token_id, model.encoder.image_token_id), (3, 3))

    def test_names_with_dots_are_parts(self):
        plain, rows = torch.zeros(1), [torch.ones(1), torch.ones(2)]
        found = nested({"a": plain, "b.image.rows.1": rows[1], "b.image.rows.0": rows[0]})
        self.assertIs(found["a"], plain)
        self.assertIs(found["b"].get("image").rows[0], rows[0])
        self.assertIs(found["b"]["image"].rows[1], rows[1])
        self.assertIsNone(found["b"]["image"].hidden_states)

    def test_only_zeros_are_drawn(self):
        model = Wrapper()
        with torch.no_grad():
            model.encoder.weight.zero_()
        kept = model.encoder.bias.clone(), model.language_model.embed_tokens.weight.clone()
        notes = draw_encoder(model)
        self.assertIn("1 tensors of the encoder", notes[0])
        self.assertTrue(bool(model.encoder.weight.all()))
        self.assertTrue(torch.equal(model.encoder.bias, kept[0]) and torch.equal(model.language_model.embed_tokens.weight, kept[1]))
        again = Wrapper()
        with torch.no_grad():
            again.encoder.weight.zero_()
        draw_encoder(again)
        self.assertTrue(torch.equal(again.encoder.weight, model.encoder.weight))

    def test_pieces_hold_tokens_that_see_each_other(self):
        told = prompt() | {"given": [1, 2, 4], "spans": [[1, 3], [4, 5]]}
        self.assertEqual(chunk_sizes(told, None)[0], 5)
        self.assertEqual(chunk_sizes(prompt(), None)[0], 3)
        self.assertEqual((mask_of(told), given_of(told), given_of(prompt())), ({"prompt": told}, {"prompt": told}, {}))

    def test_types_come_with_rows_alone(self):
        at = torch.tensor([False, True, False])
        given = Given(at, torch.zeros(1, 2), {}, {"token_type_ids": torch.tensor([[0, 1, 0]])})
        self.assertEqual(given.outer(0, 2)["token_type_ids"].tolist(), [[0, 1]])
        self.assertEqual(given.outer(2, 3), {})


if __name__ == "__main__":
    unittest.main()
