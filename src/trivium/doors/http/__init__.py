"""The http door: MindIE's `/infer`, the OpenAI API and its relatives, and a page to talk to."""
