import{a,b,c}from"./chunk-EQRHWREF.js";import"./chunk-2JG6UH3G.js";import"./chunk-SVPYO5R6.js";import"./chunk-JPGG35DO.js";import"./chunk-YE4JWIB7.js";export{c as Heads,b as Train,a as joined};
