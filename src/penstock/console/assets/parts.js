// Pieces that several screens are made of.

import { h } from './dom.js'
import { go } from './app.js'

const LEVELS = {
  following: 'good', loaded: 'good', running: 'good', leading: 'good', standby: 'idle', ready: 'good',
  loading: 'busy', 'catching up': 'busy', starting: 'busy', waiting: 'busy', reconnecting: 'bad', stopping: 'busy',
  paused: 'held', new: 'idle', parked: 'bad', restarting: 'bad', stopped: 'bad', down: 'bad', silent: 'busy',
}

export const levelOf = (state) => LEVELS[state] ?? 'idle'

// The word and the level of a lane. One whose process is well may wait for its target, and says why.
export const laneState = (lane) =>
  lane.paused ? ['paused', 'held']
    : !lane.configured ? ['left behind', 'bad']
      : lane.state === 'running' && lane.reason ? ['held up', 'bad']
        : [lane.state ?? 'not running', levelOf(lane.state)]

// Never by colour alone: the word is always there, and the mark has a shape of its own.
export const state = (word, level = levelOf(word)) =>
  h('span', { class: `state ${level}` }, h('i', { 'aria-hidden': 'true' }), word)

export const link = (to, ...text) =>
  h('a', { href: `#/${to}`, onclick: (event) => { event.preventDefault(); go(to) } }, text)

export const streamLink = (name) => link(`streams/${encodeURIComponent(name)}`, name)

export const empty = (title, ...more) =>
  h('div', { class: 'empty' }, h('h3', null, title), h('p', null, more))

export const problem = (text) => h('p', { class: 'problem', role: 'alert' }, text)

export const card = (title, attributes, ...children) =>
  h('section', { ...attributes, class: `card ${attributes?.class ?? ''}` }, title && h('h2', null, title), children)

// A table that becomes a list of cards where there is no room for columns.
export function table(given, rows, attributes = {}) {
  const columns = given.map((column) => ({ ...column, right: column.right || column.name === '' }))
  return h('div', { class: 'scroll', key: attributes.key },
    h('table', { class: attributes.class, 'aria-label': attributes.label },
      h('thead', null, h('tr', null, columns.map((column) =>
        h('th', { scope: 'col', class: column.right && 'right', 'aria-sort': column.sorted }, column.sort
          ? h('button', { class: 'sort', onclick: column.sort }, column.name, h('span', { 'aria-hidden': 'true' }, column.sorted === 'descending' ? ' ↓' : column.sorted === 'ascending' ? ' ↑' : ''))
          : column.name)))),
      h('tbody', null, rows.map((row) =>
        h('tr', { key: row.key, class: row.class, onclick: row.onclick, 'data-name': row.key }, row.cells.map((cell, index) =>
          h('td', { class: columns[index].right && 'right', 'data-label': columns[index].name }, cell)))))))
}

export const bar = (part, label) =>
  h('span', { class: 'bar', role: 'progressbar', 'aria-valuenow': Math.round((part ?? 0) * 100), 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-label': label },
    h('span', { made: (node) => { node.style.width = '0' }, class: 'fill', own: false, 'data-part': part ?? 0 }))

// Widths come from numbers, and a style written into the page is forbidden: they are set here.
export function settle(root) {
  for (const fill of root.querySelectorAll('[data-part]')) fill.style.width = `${Math.round(fill.dataset.part * 1000) / 10}%`
}
