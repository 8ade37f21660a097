"""Images, video and audio on their way into a prompt."""

from trivium.media.parts import MAX_MEDIA, PART_KINDS, MediaPart, TextPart, parse_parts

__all__ = ["MAX_MEDIA", "PART_KINDS", "MediaPart", "TextPart", "parse_parts"]
